//! Which entry of a port's GID table belongs to an address: a pure function over the table.
//!
//! An index is never fixed and the first entry never taken: tables hold link-local entries that come
//! and go, RoCE v1 twins of each v2 entry, and the same address on several network devices.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// What kind of address an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand's own.
    Infiniband,
    /// RoCE v1: Ethernet frames, not routed.
    RoceV1,
    /// RoCE v2: UDP.
    RoceV2,
    /// A kind that this crate does not know.
    Other(u32),
}

impl From<u32> for GidKind {
    fn from(raw: u32) -> GidKind {
        match raw {
            0 => GidKind::Infiniband,
            1 => GidKind::RoceV1,
            2 => GidKind::RoceV2,
            other => GidKind::Other(other),
        }
    }
}

/// An entry of a GID table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// The address, 16 bytes in network order.
    pub gid: [u8; 16],
    /// Its index in the port's table.
    pub index: u32,
    /// The port it belongs to, from 1 on.
    pub port: u32,
    /// What kind of address it is.
    pub kind: GidKind,
    /// Index of the network device it stands on; 0 where the kernel does not say.
    pub netdev_index: u32,
}

impl GidEntry {
    /// The address as IP has it: IPv4-mapped ones as IPv4.
    pub fn address(&self) -> IpAddr {
        Ipv6Addr::from(self.gid).to_canonical()
    }
}

impl fmt::Debug for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GidEntry {
            index,
            port,
            kind,
            netdev_index,
            ..
        } = self;
        write!(
            f,
            "{} (index {index}, port {port}, {kind:?}, network device {netdev_index})",
            self.address()
        )
    }
}

/// What an entry has to belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidWanted {
    /// The local IP address.
    pub address: IpAddr,
    /// The port of the device.
    pub port: u32,
    /// Index of the network device that has the address, where it is known.
    pub netdev_index: Option<u32>,
}

/// Why no entry was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoGid {
    /// No RoCE v2 entry of the port has the address.
    Missing,
    /// The port has the address as RoCE v1 only.
    OnlyRoceV1,
    /// It has the address, on other network devices.
    OtherNetdev,
    /// Several network devices have it, and which one is wanted is not known.
    Ambiguous,
}

/// The RoCE v2 entry of `wanted`: of its port, with exactly its address, on its network device. An entry
/// whose network device the kernel does not say (as in some containers) is taken where no other fits.
pub fn choose_gid(entries: &[GidEntry], wanted: &GidWanted) -> Result<GidEntry, NoGid> {
    let address = match wanted.address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let same = |entry: &&GidEntry| entry.port == wanted.port && entry.gid == address;
    let of_kind = |kind: GidKind| {
        entries
            .iter()
            .filter(same)
            .filter(move |entry| entry.kind == kind)
    };
    let mut fitting = of_kind(GidKind::RoceV2);
    let Some(first) = fitting.next() else {
        return Err(match of_kind(GidKind::RoceV1).next() {
            Some(_) => NoGid::OnlyRoceV1,
            None => NoGid::Missing,
        });
    };
    match wanted.netdev_index {
        Some(netdev) => {
            let on = |index: u32| of_kind(GidKind::RoceV2).find(|e| e.netdev_index == index);
            on(netdev).or(on(0)).copied().ok_or(NoGid::OtherNetdev)
        }
        None if fitting.all(|entry| entry.netdev_index == first.netdev_index) => Ok(*first),
        None => Err(NoGid::Ambiguous),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: u32 = 1;
    const V2: u32 = 2;

    /// A table of port 1 from (address, kind, network device), indices in order.
    fn table(rows: &[(&str, u32, u32)]) -> Vec<GidEntry> {
        rows.iter()
            .enumerate()
            .map(|(index, &(address, kind, netdev_index))| GidEntry {
                gid: match address.parse().expect("an address") {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                    IpAddr::V6(v6) => v6.octets(),
                },
                index: index as u32,
                port: 1,
                kind: kind.into(),
                netdev_index,
            })
            .collect()
    }

    fn chosen(rows: &[(&str, u32, u32)], address: &str, netdev: Option<u32>) -> Result<u32, NoGid> {
        let wanted = GidWanted {
            address: address.parse().expect("an address"),
            port: 1,
            netdev_index: netdev,
        };
        choose_gid(&table(rows), &wanted).map(|entry| entry.index)
    }

    #[test]
    fn cases() {
        // A usual ConnectX port: link-local and IPv4, each as v1 and v2.
        let usual = &[
            ("fe80::1", V1, 3),
            ("fe80::1", V2, 3),
            ("10.0.0.1", V1, 3),
            ("10.0.0.1", V2, 3),
        ][..];
        // Two network devices of one port (a VLAN, a second address) with addresses alike.
        let twins = &[("192.168.0.1", V2, 3), ("192.168.0.1", V2, 7)][..];
        let two_nets = &[("10.1.0.1", V2, 3), ("10.2.0.1", V2, 7)][..];
        let v1_only = &[("10.0.0.1", V1, 3)][..];
        let unknown_netdev = &[("10.0.0.1", V2, 0)][..];
        let gap_filled = &[("fe80::2", V2, 4), ("::", V2, 4), ("10.0.0.1", V2, 4)][..];
        let v6 = &[("fe80::1", V2, 3), ("2001:db8::1", V2, 3)][..];
        for (name, rows, address, netdev, expected) in [
            ("v2 and not v1", usual, "10.0.0.1", Some(3), Ok(3)),
            ("without a netdev", usual, "10.0.0.1", None, Ok(3)),
            (
                "link-local only when asked",
                usual,
                "fe80::1",
                Some(3),
                Ok(1),
            ),
            (
                "no nearest match",
                usual,
                "10.0.0.2",
                Some(3),
                Err(NoGid::Missing),
            ),
            ("the netdev decides", twins, "192.168.0.1", Some(7), Ok(1)),
            (
                "nothing decides",
                twins,
                "192.168.0.1",
                None,
                Err(NoGid::Ambiguous),
            ),
            (
                "wrong netdev",
                usual,
                "10.0.0.1",
                Some(9),
                Err(NoGid::OtherNetdev),
            ),
            ("the exact one of two", two_nets, "10.2.0.1", None, Ok(1)),
            (
                "v1 only",
                v1_only,
                "10.0.0.1",
                Some(3),
                Err(NoGid::OnlyRoceV1),
            ),
            (
                "netdev unknown to the kernel",
                unknown_netdev,
                "10.0.0.1",
                Some(3),
                Ok(0),
            ),
            (
                "behind an empty entry",
                gap_filled,
                "10.0.0.1",
                Some(4),
                Ok(2),
            ),
            ("IPv6", v6, "2001:db8::1", Some(3), Ok(1)),
            (
                "an empty table",
                &[][..],
                "10.0.0.1",
                None,
                Err(NoGid::Missing),
            ),
        ] {
            assert_eq!(chosen(rows, address, netdev), expected, "{name}");
        }
    }

    #[test]
    fn only_the_port_that_is_wanted_counts() {
        let mut entries = table(&[("10.0.0.1", V2, 3), ("10.0.0.1", V2, 3)]);
        entries[0].port = 2;
        let wanted = GidWanted {
            address: "10.0.0.1".parse().expect("an address"),
            port: 1,
            netdev_index: None,
        };
        assert_eq!(choose_gid(&entries, &wanted).map(|e| e.index), Ok(1));
    }

    #[test]
    fn entries_print_as_people_write_addresses() {
        let entry = table(&[("10.0.0.1", V2, 3)])[0];
        assert_eq!(
            format!("{entry:?}"),
            "10.0.0.1 (index 0, port 1, RoceV2, network device 3)"
        );
    }
}
