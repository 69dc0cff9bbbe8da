//! Network devices and their addresses, and addresses as C has them.

use core::mem;
use core::ptr;
use std::ffi::CStr;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::error::{Call, Error};

/// An address of a network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// The network device's name.
    pub(crate) name: String,
    /// Its index.
    pub(crate) index: u32,
    /// The address with port 0, for IPv6 with its scope.
    pub(crate) address: SocketAddr,
}

/// All IP addresses of this machine (of this network namespace).
pub(crate) fn interfaces() -> Result<Vec<Interface>, Error> {
    let mut list = ptr::null_mut();
    // SAFETY: `list` is a place for the pointer to a list, which is freed below.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(Error::call(Call::GetIfAddrs, io::Error::last_os_error()));
    }
    let mut found = Vec::new();
    let mut entry = list;
    // SAFETY: the entries are valid until `freeifaddrs`; their names are C strings; `ifa_addr` is null
    // or points to an address of the family that it names.
    unsafe {
        while let Some(one) = entry.as_ref() {
            if let Some(address) = from_c(one.ifa_addr) {
                found.push(Interface {
                    name: CStr::from_ptr(one.ifa_name).to_string_lossy().into_owned(),
                    index: libc::if_nametoindex(one.ifa_name),
                    address,
                });
            }
            entry = one.ifa_next;
        }
        libc::freeifaddrs(list);
    }
    Ok(found)
}

/// An address in the form that C functions take.
pub(crate) struct CAddress(libc::sockaddr_storage);

impl CAddress {
    pub(crate) fn as_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.0).cast()
    }
}

impl From<SocketAddr> for CAddress {
    fn from(address: SocketAddr) -> CAddress {
        // SAFETY: all zeros is a valid address without a family.
        let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
        let place = &raw mut storage;
        match address {
            SocketAddr::V4(v4) => {
                // SAFETY: the storage is large and aligned enough for any address; it outlives the borrow.
                let sin = unsafe { &mut *place.cast::<libc::sockaddr_in>() };
                sin.sin_family = libc::AF_INET as libc::sa_family_t;
                sin.sin_port = v4.port().to_be();
                sin.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                // SAFETY: as above.
                let sin = unsafe { &mut *place.cast::<libc::sockaddr_in6>() };
                sin.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                sin.sin6_port = v6.port().to_be();
                sin.sin6_addr.s6_addr = v6.ip().octets();
                sin.sin6_scope_id = v6.scope_id();
            }
        }
        CAddress(storage)
    }
}

/// The IP address at `address`, if there is one.
///
/// # Safety
/// `address` must be null or point to an address whose size is that of the family it names.
pub(crate) unsafe fn from_c(address: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: by the caller's promise there is an address, so at least its family can be read.
    let family = i32::from(unsafe { address.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: the family says that it is this struct; it may lie unaligned.
            let sin = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(sin.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(sin.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let sin = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(sin.sin6_addr.s6_addr);
            let port = u16::from_be(sin.sin6_port);
            Some(SocketAddrV6::new(ip, port, 0, sin.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_through_c() {
        for text in ["10.1.2.3:7400", "[2001:db8::5]:7400", "[fe80::1%4]:1"] {
            let address: SocketAddr = text.parse().expect("an address");
            let mut c = CAddress::from(address);
            // SAFETY: the storage holds the address that was just put there.
            assert_eq!(unsafe { from_c(c.as_ptr()) }, Some(address));
        }
        // SAFETY: null is allowed.
        assert_eq!(unsafe { from_c(ptr::null()) }, None);
    }

    #[test]
    fn the_loopback_device_is_found() {
        let all = interfaces().expect("interfaces");
        assert!(
            all.iter()
                .any(|i| i.address.ip().is_loopback() && i.index > 0)
        );
    }
}
