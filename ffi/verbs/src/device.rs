//! An RDMA device, chosen by the network device or address that it stands on.

use core::ffi::c_int;
use core::mem;
use core::ptr::{self, NonNull};
use core::sync::atomic::AtomicBool;
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

use crate::error::{Call, Error};
use crate::gid::{GidEntry, GidWanted, choose_gid};
use crate::health::Registry;
use crate::limits::Limits;
use crate::netdev::{CAddress, Interface, interfaces};
use crate::parameters::PathMtu;
use crate::sys;

/// Which device is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The one on the network device of this name; of its addresses the first that works, IPv4 before IPv6.
    Netdev(String),
    /// The one on the network device that has this address.
    Address(IpAddr),
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selector::Netdev(name) => write!(f, "network device {name}"),
            Selector::Address(address) => write!(f, "address {address}"),
        }
    }
}

/// An open device, shared by everything that is made on it. Cloning it is cheap.
///
/// It is the one context that librdmacm itself has opened for the device: queue pairs of another context
/// could not be connected by it, and some devices allow one context a process only. A connection
/// manager's id, bound to the address and otherwise unused, keeps it open.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    verbs: NonNull<sys::ibv_context>,
    shared: Arc<Shared>,
    name: String,
    port: u8,
    interface: Interface,
    gid: Option<GidEntry>,
    limits: Limits,
    // Last, so that whatever needs the device is gone before.
    _anchor: Anchor,
}

/// What belongs to a device however often it is opened, by one address or several: librdmacm has it open once.
#[derive(Default)]
struct Shared {
    registry: Registry,
    watched: AtomicBool,
}

static SHARED: Mutex<Vec<(usize, Weak<Shared>)>> = Mutex::new(Vec::new());

impl Shared {
    fn of(verbs: NonNull<sys::ibv_context>) -> Arc<Shared> {
        let mut all = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, shared)| shared.strong_count() > 0);
        let address = verbs.as_ptr().addr();
        let mut known = all.iter().filter(|(of, _)| *of == address);
        if let Some(shared) = known.find_map(|(_, shared)| shared.upgrade()) {
            return shared;
        }
        let shared = Arc::new(Shared::default());
        all.push((address, Arc::downgrade(&shared)));
        shared
    }
}

// SAFETY: libibverbs and librdmacm allow calls on one context from any thread at the same time; the
// anchor's id is not used again before it is destroyed.
unsafe impl Send for Inner {}
// SAFETY: as above; nothing in it is changed after it was made.
unsafe impl Sync for Inner {}

impl Context {
    /// Opens the device that `selector` names, and logs what was chosen and what it can do.
    ///
    /// # Errors
    /// [`Error::NoDevice`] where no RDMA device stands there, with the devices that there are; a failed call.
    pub fn open(selector: &Selector) -> Result<Context, Error> {
        fork_init();
        let all = interfaces()?;
        let mut wanted: Vec<&Interface> = all
            .iter()
            .filter(|interface| match selector {
                Selector::Netdev(name) => interface.name == *name,
                Selector::Address(address) => interface.address.ip() == *address,
            })
            .collect();
        wanted.sort_by_key(|interface| interface.address.is_ipv6());
        let mut why = String::from("there is no such address on this machine");
        for interface in wanted {
            match Context::open_at(interface) {
                Ok(context) => return Ok(context),
                Err(error) => why = with_cause(&error),
            }
        }
        Err(Error::NoDevice {
            wanted: selector.to_string(),
            seen: format!("{why}; {}", devices()),
        })
    }

    fn open_at(interface: &Interface) -> Result<Context, Error> {
        let anchor = Anchor::bind(interface.address)?;
        // SAFETY: the id is valid while the anchor lives.
        let (verbs, port) = unsafe { (anchor.id.as_ref().verbs, anchor.id.as_ref().port_num) };
        let verbs = NonNull::new(verbs).ok_or_else(|| {
            Error::call(Call::BindAddr, io::Error::from_raw_os_error(libc::ENODEV))
                .context("the address belongs to no RDMA device")
        })?;
        // SAFETY: the context is valid while the anchor lives, and so is its device with its name.
        let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name((*verbs.as_ptr()).device)) };
        let limits = query_limits(verbs, port)?;
        let context = Context {
            inner: Arc::new(Inner {
                verbs,
                shared: Shared::of(verbs),
                name: name.to_string_lossy().into_owned(),
                port,
                interface: interface.clone(),
                gid: find_gid(verbs, port, interface),
                limits,
                _anchor: anchor,
            }),
        };
        context.limits().log(&context);
        Ok(context)
    }

    /// The device's name, as `rdma link` shows it. It can change with the next boot.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The device's port that is used, from 1 on.
    pub fn port(&self) -> u8 {
        self.inner.port
    }

    /// The address it was chosen by, with port 0.
    pub fn address(&self) -> SocketAddr {
        self.inner.interface.address
    }

    /// The network device that it stands on.
    pub fn netdev(&self) -> &str {
        &self.inner.interface.name
    }

    /// The RoCE v2 entry of its GID table that belongs to the address; `None` where the table can't be
    /// read or has none. The connection manager chooses by the address, so this is for showing.
    pub fn gid(&self) -> Option<&GidEntry> {
        self.inner.gid.as_ref()
    }

    /// What it can do.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// The health of its objects.
    pub(crate) fn registry(&self) -> &Registry {
        &self.inner.shared.registry
    }

    /// Whether a thread reads its asynchronous events: one at a time may.
    pub(crate) fn watched(&self) -> &AtomicBool {
        &self.inner.shared.watched
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_context {
        self.inner.verbs.as_ptr()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({} port {})", self.name(), self.port())
    }
}

/// An id bound to an address, on an event channel of its own that nobody reads.
struct Anchor {
    id: NonNull<sys::rdma_cm_id>,
    channel: NonNull<sys::rdma_event_channel>,
}

impl Anchor {
    fn bind(address: SocketAddr) -> Result<Anchor, Error> {
        // SAFETY: the call has no arguments; it opens /dev/infiniband/rdma_cm.
        let channel = sys::pointer(Call::CreateEventChannel, unsafe {
            sys::rdma_create_event_channel()
        })?;
        let mut id = ptr::null_mut();
        // SAFETY: the channel was just made; `id` is a place for the pointer.
        let made = sys::check(Call::CreateId, unsafe {
            let space = sys::rdma_port_space::RDMA_PS_TCP;
            sys::rdma_create_id(channel.as_ptr(), &mut id, ptr::null_mut(), space)
        });
        let id = match made.and_then(|()| sys::pointer(Call::CreateId, id)) {
            Ok(id) => id,
            Err(error) => {
                // SAFETY: the channel has no id and is not used again.
                unsafe { sys::rdma_destroy_event_channel(channel.as_ptr()) };
                return Err(error);
            }
        };
        let anchor = Anchor { id, channel };
        let mut c = CAddress::from(address);
        // SAFETY: id and address are valid for the call.
        sys::check(Call::BindAddr, unsafe {
            sys::rdma_bind_addr(anchor.id.as_ptr(), c.as_ptr())
        })?;
        Ok(anchor)
    }
}

impl Drop for Anchor {
    fn drop(&mut self) {
        // SAFETY: made in `bind` and destroyed here only; no event of the channel was ever taken, so
        // destroying the id waits for nothing, and the channel has no other id.
        unsafe {
            sys::rdma_destroy_id(self.id.as_ptr());
            sys::rdma_destroy_event_channel(self.channel.as_ptr());
        }
    }
}

/// Makes registered memory survive `fork`, before anything is registered. Newer kernels copy such pages
/// when forking and need nothing; with huge pages the environment variable `RDMAV_HUGEPAGES_SAFE` is needed
/// besides on older ones. Failure matters only to programs that fork, so it is logged.
fn fork_init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: no arguments; it may be called at any time, and answers EINVAL if it is too late.
        let answer = unsafe { sys::ibv_fork_init() };
        if answer != 0 {
            let error = io::Error::from_raw_os_error(answer);
            tracing::warn!(%error, "ibv_fork_init failed: a forked process may corrupt registered memory");
        }
    });
}

fn query_limits(verbs: NonNull<sys::ibv_context>, port: u8) -> Result<Limits, Error> {
    // SAFETY: both structs are plain numbers, for which zero is valid. They are zeroed since older
    // kernels and the fallback of the query fill a part of them only. The context is valid.
    let (device, attr, vectors) = unsafe {
        let mut device: sys::ibv_device_attr = mem::zeroed();
        let answer = sys::ibv_query_device(verbs.as_ptr(), &mut device);
        sys::check(Call::QueryDevice, answer)?;
        let mut attr: sys::ibv_port_attr = mem::zeroed();
        let answer = sys::___ibv_query_port(verbs.as_ptr(), port, &mut attr);
        sys::check(Call::QueryPort, answer)?;
        (device, attr, verbs.as_ref().num_comp_vectors)
    };
    let number = |value: c_int| u32::try_from(value).unwrap_or(0);
    let firmware: Vec<u8> = device
        .fw_ver
        .iter()
        .map(|&c| c as u8)
        .take_while(|&c| c != 0)
        .collect();
    Ok(Limits {
        firmware: String::from_utf8_lossy(&firmware).into_owned(),
        vendor: device.vendor_id,
        queue_pairs: number(device.max_qp),
        work_requests: number(device.max_qp_wr),
        pieces: number(device.max_sge),
        completion_queues: number(device.max_cq),
        completions: number(device.max_cqe),
        completion_vectors: number(vectors),
        memory_regions: number(device.max_mr),
        memory_region_bytes: device.max_mr_size,
        protection_domains: number(device.max_pd),
        reads_answered: number(device.max_qp_rd_atom),
        reads_in_flight: number(device.max_qp_init_rd_atom),
        message_bytes: attr.max_msg_sz,
        path_mtu: PathMtu::from_raw(attr.active_mtu),
        gids: number(attr.gid_tbl_len),
        active: attr.state == sys::ibv_port_state::IBV_PORT_ACTIVE,
    })
}

fn find_gid(verbs: NonNull<sys::ibv_context>, port: u8, interface: &Interface) -> Option<GidEntry> {
    let entries = match read_gids(verbs) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::warn!(error = %with_cause(&error), "the GID table can't be read");
            return None;
        }
    };
    let wanted = GidWanted {
        address: interface.address.ip(),
        port: port.into(),
        netdev_index: (interface.index != 0).then_some(interface.index),
    };
    choose_gid(&entries, &wanted)
        .inspect_err(|why| {
            tracing::warn!(
                ?why,
                ?wanted,
                ?entries,
                "no RoCE v2 entry of the GID table belongs to the address"
            );
        })
        .ok()
}

/// All entries in use, of all ports.
fn read_gids(verbs: NonNull<sys::ibv_context>) -> Result<Vec<GidEntry>, Error> {
    /// 64,000 bytes: the kernel's interface has 16 bits for the size. Only entries in use are told, and the call fails
    /// where these are more.
    const MOST: usize = 2000;
    let empty = sys::RawGidEntry {
        gid: [0; 16],
        gid_index: 0,
        port_num: 0,
        gid_type: 0,
        ndev_ifindex: 0,
    };
    let mut raw = vec![empty; MOST];
    // SAFETY: the context is valid; `raw` has room for as many entries of that size as the call is told.
    let found = unsafe {
        let size = size_of::<sys::RawGidEntry>();
        sys::_ibv_query_gid_table(verbs.as_ptr(), raw.as_mut_ptr(), raw.len(), 0, size)
    };
    let Ok(found) = usize::try_from(found) else {
        // The function answers with a negative errno.
        let errno = io::Error::from_raw_os_error(-found as i32);
        return Err(Error::call(Call::QueryGidTable, errno));
    };
    let entry = |raw: &sys::RawGidEntry| GidEntry {
        gid: raw.gid,
        index: raw.gid_index,
        port: raw.port_num,
        kind: raw.gid_type.into(),
        netdev_index: raw.ndev_ifindex,
    };
    Ok(raw.iter().take(found).map(entry).collect())
}

/// The devices there are, for a message.
fn devices() -> String {
    let folder = std::fs::read_dir("/sys/class/infiniband");
    let mut names: Vec<String> = folder
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .collect();
    names.sort();
    match names.len() {
        0 => "there are no RDMA devices".into(),
        _ => format!("RDMA devices: {}", names.join(", ")),
    }
}

/// An error with what caused it, on one line.
fn with_cause(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error} ({source})"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_without_a_device_are_refused_with_what_there_is() {
        let nowhere = Selector::Address("192.0.2.1".parse().expect("an address"));
        let error = Context::open(&nowhere).expect_err("no device").to_string();
        assert!(
            error.contains("no RDMA device at address 192.0.2.1"),
            "{error}"
        );
        assert!(error.contains("no such address"), "{error}");
        assert!(Context::open(&Selector::Netdev("nosuch0".into())).is_err());
    }
}
