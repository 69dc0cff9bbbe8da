//! The ports of this build, and the choice of one by its URL.

use core::time::Duration;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rowmill_arena::Window;
#[cfg(feature = "rdma")]
use rowmill_port::rdma::{RdmaClient, RdmaClientConfig};
use rowmill_port::shm::{ShmClient, ShmClientConfig};
use rowmill_port::{ClientPort, Foreign, PortError, RegionId, Rest, WakeFds};
use rowmill_wire::control::{TableEntry, Welcome};
use rowmill_wire::{Completion, Schema};

use crate::error::ClientError;
use crate::options::Options;
use crate::session::Session;

/// Connects to dataplanes.
#[derive(Debug)]
pub struct Client;

impl Client {
    /// Connects to the dataplane at `url`, such as `shm:/run/rowmill/demo.sock`.
    ///
    /// # Errors
    /// [`ClientError::Endpoint`] for a URL of no port of this build; [`ClientError::Port`] where
    /// nobody listens there or the connection is refused; [`ClientError::NoAnswer`] where nothing answers,
    /// [`ClientError::Interrupted`].
    pub fn connect(url: &str, options: Options) -> Result<Session<AnyPort>, ClientError> {
        let port = match scheme(url)? {
            Scheme::Shm => {
                let config = ShmClientConfig {
                    credits: options.credits,
                    reply_limit: options.reply_limit,
                    interrupt: options.interrupt.clone(),
                    ..ShmClientConfig::default()
                };
                AnyPort::Shm(ShmClient::connect_with(url, &options.name, config)?)
            }
            #[cfg(feature = "rdma")]
            Scheme::Rdma => {
                let config = RdmaClientConfig {
                    credits: options.credits,
                    reply_limit: options.reply_limit,
                    interrupt: options.interrupt.clone(),
                    connect_limit: options.rdma.connect_limit,
                    silent_limit: options.rdma.silent_limit,
                    connection: options.rdma.connection,
                    ..RdmaClientConfig::default()
                };
                AnyPort::Rdma(RdmaClient::connect_with(url, &options.name, config)?)
            }
        };
        Session::over(port, options)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Shm,
    #[cfg(feature = "rdma")]
    Rdma,
}

fn scheme(url: &str) -> Result<Scheme, ClientError> {
    let refused = |reason| {
        Err(ClientError::Endpoint {
            url: url.into(),
            reason,
        })
    };
    match url.split_once(':') {
        Some(("shm", path)) if path.starts_with('/') && path.len() > 1 => Ok(Scheme::Shm),
        Some(("shm", _)) => refused("the socket's path must be absolute"),
        #[cfg(feature = "rdma")]
        Some(("rdma", rest)) if rest.starts_with("//") => Ok(Scheme::Rdma),
        Some(("rdma", _)) => refused("it has to look like rdma://host:7400"),
        Some(("tcp" | "rowmill", _)) => refused("that port is not part of this version"),
        Some(_) => refused("no port of that name is known"),
        None => refused("it names no port"),
    }
}

/// One of the ports of this build. A variant each instead of a trait object: choosing costs a
/// compare that predicts well, and the port's polling stays open to inlining.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one a session, and it stays where it is"
)]
pub enum AnyPort {
    /// Shared memory on one host.
    Shm(ShmClient),
    /// RDMA, from another host too.
    #[cfg(feature = "rdma")]
    Rdma(RdmaClient),
}

/// A session may be used by one thread after another, or be shared by threads that take turns.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Session<AnyPort>>();
};

macro_rules! each {
    ($port:expr, $name:ident => $call:expr) => {
        match $port {
            AnyPort::Shm($name) => $call,
            #[cfg(feature = "rdma")]
            AnyPort::Rdma($name) => $call,
        }
    };
}

impl ClientPort for AnyPort {
    fn welcome(&self) -> &Welcome {
        each!(self, port => port.welcome())
    }

    fn tables(&mut self) -> Result<Vec<TableEntry>, PortError> {
        each!(self, port => port.tables())
    }

    fn bind(&mut self, schema: &Schema) -> Result<u32, PortError> {
        each!(self, port => port.bind(schema))
    }

    fn register(&mut self, bytes: usize) -> Result<RegionId, PortError> {
        each!(self, port => port.register(bytes))
    }

    fn register_source(&mut self, bytes: usize) -> Result<RegionId, PortError> {
        each!(self, port => port.register_source(bytes))
    }

    fn register_foreign(&mut self, foreign: Foreign) -> Result<RegionId, PortError> {
        each!(self, port => port.register_foreign(foreign))
    }

    fn unregister(&mut self, region: RegionId) -> Result<(), PortError> {
        each!(self, port => port.unregister(region))
    }

    fn memory(&self, region: RegionId) -> Option<Window<'_>> {
        each!(self, port => port.memory(region))
    }

    fn share(&self, region: RegionId) -> Option<Arc<rowmill_arena::Region>> {
        each!(self, port => port.share(region))
    }

    fn submit(&mut self, lane: u16, slot: u16, frame: &[u8]) -> Result<(), PortError> {
        each!(self, port => port.submit(lane, slot, frame))
    }

    fn cancel(&mut self, lane: u16, slot: u16) -> Result<(), PortError> {
        each!(self, port => port.cancel(lane, slot))
    }

    fn poll(&mut self, lane: u16) -> Result<Option<Completion>, PortError> {
        each!(self, port => port.poll(lane))
    }

    fn lie_down(&mut self, limit: Option<Duration>) -> Rest {
        each!(self, port => port.lie_down(limit))
    }

    fn wake_fds(&self) -> WakeFds<BorrowedFd<'_>> {
        each!(self, port => port.wake_fds())
    }

    fn get_up(&mut self) -> Result<(), PortError> {
        each!(self, port => port.get_up())
    }

    fn close(&mut self) {
        each!(self, port => port.close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_choose_a_port_or_say_what_there_is() {
        assert_eq!(
            scheme("shm:/run/rowmill/demo.sock").expect("shm"),
            Scheme::Shm
        );
        #[cfg(feature = "rdma")]
        assert_eq!(scheme("rdma://host:7400").expect("rdma"), Scheme::Rdma);
        for url in [
            "shm:demo.sock",
            "shm:/",
            "tcp://host:7400",
            "rdma:host:7400",
            "http://x",
            "/run/x",
            "",
        ] {
            let error = scheme(url).expect_err(url).to_string();
            assert!(
                error.contains("supports shm:/") && error.contains(url),
                "{error}"
            );
        }
    }
}
