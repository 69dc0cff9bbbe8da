//! An authority for development and tests, and what it issues.
//!
//! Its key is not kept: what was issued is all that there will be. All that it issues says in its subject that it is for development.

use core::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::ServerName;

use crate::identity::Identity;

/// Why nothing was issued.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A server can't be called so.
    #[error("`{0}` is no name or address of a host")]
    Name(String),
    /// There is no key, or something can't be written.
    #[error(transparent)]
    Make(#[from] rcgen::Error),
}

/// From when until when something is valid.
pub type Validity = Range<SystemTime>;

/// What was issued, in PEM.
#[derive(Clone)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

/// An authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

fn params(title: &str, validity: &Validity) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut name = rcgen::DistinguishedName::new();
    name.push(DnType::OrganizationName, "rowmill, for development only");
    name.push(DnType::CommonName, title);
    params.distinguished_name = name;
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let at = |time: SystemTime| epoch + time.duration_since(UNIX_EPOCH).unwrap_or_default();
    (params.not_before, params.not_after) = (at(validity.start), at(validity.end));
    params
}

impl Authority {
    /// One with a name that no other has.
    ///
    /// # Errors
    /// Where no key can be drawn.
    pub fn new(validity: &Validity) -> Result<Authority, Error> {
        let mut drawn = [0; 4];
        SystemRandom::new()
            .fill(&mut drawn)
            .map_err(|_| rcgen::Error::RingUnspecified)?;
        let title = format!(
            "rowmill development authority {:08x}",
            u32::from_ne_bytes(drawn)
        );
        let mut params = params(&title, validity);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Authority {
            issuer: Issuer::new(params, key),
            certificate,
        })
    }

    /// Its certificate, in PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A certificate for a server of these names and addresses.
    ///
    /// # Errors
    /// Where one of them is neither.
    pub fn server(&self, names: &[String], validity: &Validity) -> Result<Issued, Error> {
        let mut params = params("rowmill-control (development)", validity);
        for name in names {
            params
                .subject_alt_names
                .push(match ServerName::try_from(name.as_str()) {
                    Ok(ServerName::IpAddress(address)) => SanType::IpAddress(address.into()),
                    Ok(ServerName::DnsName(_)) => SanType::DnsName(name.as_str().try_into()?),
                    _ => return Err(Error::Name(name.clone())),
                });
        }
        self.issue(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A certificate for a client.
    ///
    /// # Errors
    /// Where no key can be drawn.
    pub fn client(&self, of: &Identity, validity: &Validity) -> Result<Issued, Error> {
        self.client_of(&[of.uri()], &format!("{of} (development)"), validity)
    }

    /// A certificate for a client that has these URIs.
    ///
    /// # Errors
    /// Where one of them is none, or no key can be drawn.
    pub fn client_of(
        &self,
        uris: &[String],
        title: &str,
        validity: &Validity,
    ) -> Result<Issued, Error> {
        let mut params = params(title, validity);
        for uri in uris {
            let uri = SanType::URI(uri.as_str().try_into()?);
            params.subject_alt_names.push(uri);
        }
        self.issue(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn issue(
        &self,
        mut params: CertificateParams,
        purpose: ExtendedKeyUsagePurpose,
    ) -> Result<Issued, Error> {
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Issued {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}
