//! Bytes on the wire, both ways, as this side's end of it counts them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rowmill_verbs::Context as Device;

/// Counters of a device's link.
pub(super) struct Wire {
    counters: [PathBuf; 2],
    /// Bytes of one count.
    unit: u64,
}

impl Wire {
    /// Of a device: what its port counts, or its network device where it is a software one, whose packets are that
    /// one's.
    pub(super) fn of(device: &Device) -> Wire {
        let home = Path::new("/sys/class/infiniband").join(device.name());
        if home.join("device").exists() {
            let port = home.join(format!("ports/{}/counters", device.port()));
            // InfiniBand counts words of four bytes.
            return Wire {
                counters: ["port_rcv_data", "port_xmit_data"].map(|name| port.join(name)),
                unit: 4,
            };
        }
        let netdev = Path::new("/sys/class/net").join(device.netdev());
        Wire {
            counters: ["rx_bytes", "tx_bytes"].map(|name| netdev.join("statistics").join(name)),
            unit: 1,
        }
    }

    /// Bytes so far.
    ///
    /// # Errors
    /// Where a counter can't be read.
    pub(super) fn bytes(&self) -> Result<u64> {
        let mut sum = 0;
        for path in &self.counters {
            let text = fs::read_to_string(path);
            let text = text.with_context(|| format!("reading {}", path.display()))?;
            let count: u64 = text
                .trim()
                .parse()
                .with_context(|| format!("{} is {text:?}", path.display()))?;
            sum += count * self.unit;
        }
        Ok(sum)
    }
}
