//! Who is at the other end of a connection, for the control plane, dataplanes and the command: TLS 1.3, certificates and tokens.
//!
//! The server shows a certificate that an authority of the client's has issued for the name or address that was dialled
//! ([`connect`]). A client shows a certificate that an authority of the server's has issued, in which a URI says who it is
//! ([`Identity`]), or a token ([`Token`]). Certificates, keys and tokens are files; what is wrong with one is told with the file's name
//! ([`TrustError`]), and what is wrong with the other side with what to do ([`explain`]).
//!
//! Not here, by intent: who may what, which the server says, and sockets: streams are arguments.
#![forbid(unsafe_code)]

mod client;
#[cfg(feature = "development")]
pub mod development;
mod explain;
mod files;
mod identity;
mod server;
mod token;

pub use client::{ClientFiles, Secured, connect};
pub use explain::explain;
pub use files::{TrustError, is_open_to_all};
pub use identity::{Identity, NoIdentity, Role};
pub use server::{ServerFiles, identity_of};
pub use token::{Token, Tokens};

/// What others need of the library below, in the version that is used here.
pub use rustls as tls;

use rustls::crypto::CryptoProvider;
use std::sync::Arc;

/// The one implementation of the algorithms.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
