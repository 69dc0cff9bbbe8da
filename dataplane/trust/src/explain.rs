//! What went wrong between two sides, in sentences that say what to do.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// What went wrong, where it was TLS: what is wrong with the server, or what it says of this side.
pub fn explain(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    Some(match error {
        Error::InvalidCertificate(why) => of_certificate(why),
        Error::AlertReceived(alert) => of_alert(*alert),
        Error::InvalidMessage(_) => {
            "what it says is no TLS: does it speak plain HTTP? Then write http://, or have TLS set up there".into()
        }
        Error::PeerIncompatible(_) => format!("it speaks no TLS 1.3, and nothing older is spoken here ({error})"),
        other => format!("{other}"),
    })
}

fn of_certificate(why: &CertificateError) -> String {
    match why {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate was not issued by an authority of the `ca` that is set here: set the one that issued it, if this is the server that is meant".into()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("its certificate has expired: put a new one in its place there, and have it reloaded (SIGHUP) ({why})")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("its certificate is not valid yet: are both clocks right? ({why})")
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("its certificate is for another name: dial one that it has, or have one issued with this name ({why})")
        }
        other => format!("its certificate can't be trusted: {other}"),
    }
}

fn of_alert(alert: AlertDescription) -> String {
    let of_own = match alert {
        AlertDescription::CertificateRequired => {
            "it wants a client certificate: set `certificate` and `key`, or a token if it takes tokens"
        }
        AlertDescription::CertificateExpired => {
            "it says that this side's certificate has expired: have a new one issued"
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it says that this side's certificate was not issued by an authority that it knows: use one that its `client_ca` has issued"
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied => {
            "it refuses this side's certificate: its log says why (it is to be one for clients)"
        }
        AlertDescription::ProtocolVersion | AlertDescription::HandshakeFailure => {
            "it speaks no TLS 1.3 that is spoken here"
        }
        other => return format!("it refuses to speak: {other:?}"),
    };
    format!("{of_own} ({alert:?})")
}
