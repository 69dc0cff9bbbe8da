//! Options of `rdma://` endpoints.

use rowmill_port::rdma::{
    AckTimeout, ConnectionParameters, PathMtu, RdmaConfig, RetryCount, RnrTimer, kept_blocks,
};
use serde::Deserialize;

/// Queue pairs and staging.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Rdma {
    /// How often what is not acknowledged is sent again, 0 to 6. (7 means for ever: a client that is gone
    /// would never be noticed.)
    pub retry_count: u8,
    /// How long an acknowledgement is waited for: 4.096 us times 2 to this power, 1 to 31.
    pub ack_timeout: u8,
    /// InfiniBand's code of the time that a sender waits for a receiver that is not ready, 1 (10 us) to
    /// 31 (492 ms). With honest clients that never happens.
    pub rnr_timer: u8,
    /// Most bytes of payload in a packet: 256, 512, 1024, 2048 or 4096; what the path has unless set.
    pub mtu: Option<u16>,
    /// The traffic class of packets (DSCP x 4 + ECN); the system's default unless set.
    pub traffic_class: Option<u8>,
    /// Blocks that a worker stages results in, 2 to 256.
    pub stage_blocks: u32,
    /// Bytes of a block: a multiple of 4096 from 65,536 on; `stage_blocks` of them have at most 64 MiB.
    pub stage_block_bytes: u32,
}

impl Default for Rdma {
    fn default() -> Rdma {
        let port = RdmaConfig::default();
        Rdma {
            retry_count: port.connection.retries.count(),
            ack_timeout: port.connection.ack_timeout.exponent(),
            rnr_timer: port.connection.rnr_timer.code(),
            mtu: None,
            traffic_class: None,
            stage_blocks: port.stage_blocks,
            stage_block_bytes: port.stage_block_bytes as u32,
        }
    }
}

/// Most bytes of a worker's `stage_blocks`.
const STAGE_BYTES_MAX: u64 = 64 << 20;

impl Rdma {
    /// The first value that can't work, and why.
    pub(super) fn fault(&self) -> Option<(&'static str, String)> {
        let said = |key, error: Option<String>| error.map(|error| (key, error));
        let (blocks, bytes) = (self.stage_blocks, self.stage_block_bytes);
        let whole = bytes >= 64 << 10 && bytes.is_multiple_of(4096);
        said(
            "rdma.retry_count",
            error_of(RetryCount::new(self.retry_count)),
        )
        .or_else(|| {
            said(
                "rdma.ack_timeout",
                error_of(AckTimeout::new(self.ack_timeout)),
            )
        })
        .or_else(|| said("rdma.rnr_timer", error_of(RnrTimer::new(self.rnr_timer))))
        .or_else(|| {
            let mtu = self.mtu.filter(|&bytes| mtu_of(bytes).is_none())?;
            let reason = format!("is {mtu}; write 256, 512, 1024, 2048 or 4096, or leave it out");
            Some(("rdma.mtu", reason))
        })
        .or_else(|| {
            let reason = format!("is {blocks}; write 2 to 256");
            (!(2..=256).contains(&blocks)).then_some(("rdma.stage_blocks", reason))
        })
        .or_else(|| {
            let reason = format!("is {bytes}; write a multiple of 4096, at least 65536");
            (!whole).then_some(("rdma.stage_block_bytes", reason))
        })
        .or_else(|| {
            let all = u64::from(blocks) * u64::from(bytes);
            let reason =
                format!("times rdma.stage_blocks is {all}; that can be {STAGE_BYTES_MAX} at most");
            (all > STAGE_BYTES_MAX).then_some(("rdma.stage_block_bytes", reason))
        })
    }

    /// What the port is told; the rest of it is as the port has it.
    pub(crate) fn port(&self) -> RdmaConfig {
        let port = RdmaConfig::default();
        let connection = ConnectionParameters {
            retries: RetryCount::new(self.retry_count).expect("checked"),
            ack_timeout: AckTimeout::new(self.ack_timeout).expect("checked"),
            rnr_timer: RnrTimer::new(self.rnr_timer).expect("checked"),
            path_mtu: self.mtu.and_then(mtu_of),
            traffic_class: self.traffic_class,
        };
        RdmaConfig {
            connection,
            stage_blocks: self.stage_blocks,
            stage_block_bytes: self.stage_block_bytes as usize,
            ..port
        }
    }

    /// Bytes of a worker's staging.
    pub(crate) fn worker_bytes(&self) -> u64 {
        u64::from(self.stage_blocks + kept_blocks(self.stage_blocks))
            * u64::from(self.stage_block_bytes)
    }
}

fn error_of<T, E: core::fmt::Display>(outcome: Result<T, E>) -> Option<String> {
    outcome.err().map(|error| error.to_string())
}

fn mtu_of(bytes: u16) -> Option<PathMtu> {
    [
        PathMtu::Bytes256,
        PathMtu::Bytes512,
        PathMtu::Bytes1024,
        PathMtu::Bytes2048,
        PathMtu::Bytes4096,
    ]
    .into_iter()
    .find(|mtu| mtu.bytes() == u32::from(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_ports_and_bad_values_are_named() {
        let rdma = Rdma::default();
        assert_eq!(rdma.fault(), None);
        assert_eq!(rdma.worker_bytes(), 12 << 20);
        let cases = [
            (
                Rdma {
                    retry_count: 7,
                    ..rdma
                },
                "rdma.retry_count",
                "7 means for ever",
            ),
            (
                Rdma {
                    ack_timeout: 0,
                    ..rdma
                },
                "rdma.ack_timeout",
                "0 means for ever",
            ),
            (
                Rdma {
                    rnr_timer: 0,
                    ..rdma
                },
                "rdma.rnr_timer",
                "655 ms",
            ),
            (
                Rdma {
                    mtu: Some(1500),
                    ..rdma
                },
                "rdma.mtu",
                "1024, 2048 or 4096",
            ),
            (
                Rdma {
                    stage_blocks: 1,
                    ..rdma
                },
                "rdma.stage_blocks",
                "2 to 256",
            ),
            (
                Rdma {
                    stage_block_bytes: 70_000,
                    ..rdma
                },
                "rdma.stage_block_bytes",
                "4096",
            ),
            (
                Rdma {
                    stage_blocks: 256,
                    stage_block_bytes: 1 << 20,
                    ..rdma
                },
                "rdma.stage_block_bytes",
                "at most",
            ),
        ];
        for (rdma, key, reason) in cases {
            let (said, why) = rdma.fault().expect(key);
            assert!(said == key && why.contains(reason), "{said}: {why}");
        }
        let set = Rdma {
            mtu: Some(2048),
            traffic_class: Some(104),
            retry_count: 3,
            ..rdma
        };
        let port = set.port();
        assert_eq!(port.connection.path_mtu.map(PathMtu::bytes), Some(2048));
        assert_eq!(port.connection.traffic_class, Some(104));
        assert_eq!(port.connection.retries.count(), 3);
    }
}
