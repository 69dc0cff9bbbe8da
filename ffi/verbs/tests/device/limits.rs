//! What is asked for is granted or refused, never silently less.

use std::net::IpAddr;
use std::path::Path;

use rowmill_verbs::{
    Access, Capacity, CompletionQueue, Context, Error, HostMemory, Pages, ProtectionDomain,
    QueuePair, Registered, Selector, dmabuf_support,
};

use crate::pair::{CAPACITY, Pair, address, device, parameters};

/// A file of the device's port in sysfs.
fn of_port(context: &Context, file: &str) -> Option<String> {
    let folder = format!(
        "/sys/class/infiniband/{}/ports/{}",
        context.name(),
        context.port()
    );
    let text = std::fs::read_to_string(Path::new(&folder).join(file)).ok()?;
    Some(text.trim().to_owned())
}

#[test]
fn the_device_is_found_by_address_and_by_netdev() {
    let Some(address) = address() else { return };
    let by_address = Context::open(&Selector::Address(address)).expect("the device");
    let by_netdev =
        Context::open(&Selector::Netdev(by_address.netdev().into())).expect("the device");
    assert_eq!(by_address.name(), by_netdev.name());
    println!(
        "{by_address:?} on {}: {:#?}",
        by_address.netdev(),
        by_address.limits()
    );
    let gid = by_address.gid().expect("a GID");
    println!("{gid:?}");
    assert_eq!(gid.address(), address);
    // Against what the kernel says by another way.
    let limits = by_address.limits();
    if let Some(state) = of_port(&by_address, "state") {
        assert_eq!(limits.active, state.contains("ACTIVE"), "{state}");
    }
    if let Some(raw) = of_port(&by_address, &format!("gids/{}", gid.index)) {
        let IpAddr::V6(in_sysfs) = raw.parse().expect("an address") else {
            panic!("{raw} is IPv6");
        };
        assert_eq!(in_sysfs.octets(), gid.gid);
    }
    assert!(limits.path_mtu.is_some() && limits.message_bytes >= 1 << 20);
    assert!(limits.queue_pairs > 0 && limits.completions > 0 && limits.work_requests > 0);
}

#[test]
fn inline_that_is_too_much_becomes_less() {
    let Some(context) = device() else { return };
    let capacity = Capacity {
        inline_bytes: 1 << 20,
        ..CAPACITY
    };
    let pair = Pair::with(&context, capacity, &parameters(), 4);
    let granted = pair.client.qp.inline_bytes();
    println!("{granted} bytes inline granted");
    assert!(granted < 1 << 20);
    let none = Capacity {
        inline_bytes: 0,
        ..CAPACITY
    };
    let pair = Pair::with(&context, none, &parameters(), 4);
    assert_eq!(pair.client.qp.inline_bytes(), 0);
}

#[test]
fn limits_are_refused_by_name() {
    let Some(context) = device() else { return };
    let limits = context.limits();
    let refused = CompletionQueue::new(&context, limits.completions + 1, None);
    assert!(matches!(refused, Err(Error::Limit { .. })), "{refused:?}");
    let queue = CompletionQueue::new(&context, 100, None).expect("a completion queue");
    assert!(queue.handle().capacity() >= 100);
    let domain = ProtectionDomain::new(&context).expect("a domain");
    let make = |capacity: Capacity| -> Result<QueuePair<()>, Error> {
        QueuePair::new(&domain, queue.handle(), queue.handle(), capacity, 0)
    };
    let too_many = Capacity {
        pieces: limits.pieces + 1,
        ..CAPACITY
    };
    assert!(matches!(make(too_many), Err(Error::Limit { .. })));
    let deep = Capacity {
        sends: limits.work_requests,
        ..CAPACITY
    };
    assert!(matches!(make(deep), Err(Error::Limit { .. })));
    // As many as there is room for in the completion queue, and what is destroyed makes room again.
    let each = CAPACITY.sends + 1 + CAPACITY.receives;
    let mut held = Vec::new();
    while queue.handle().left() >= each {
        held.push(make(CAPACITY).expect("room"));
    }
    let left = queue.handle().left();
    assert!(matches!(make(CAPACITY), Err(Error::Limit { .. })));
    assert_eq!(queue.handle().left(), left, "a refusal keeps nothing");
    drop(held.pop());
    assert!(make(CAPACITY).is_ok());
}

#[test]
fn memory_of_all_kinds() {
    let Some(context) = device() else { return };
    let domain = ProtectionDomain::new(&context).expect("a domain");
    for pages in [Pages::Small, Pages::HugeOrSmall] {
        let memory = HostMemory::new(4 << 20, pages).expect("memory");
        let access = Access::REMOTE_WRITE | Access::RELAXED_ORDERING;
        let mut registered = Registered::new(&domain, memory, access).expect("registered");
        println!("{registered:?} of {:?} pages", registered.backing().pages());
        registered.copy_in(5, &[1, 2, 3]);
        let mut out = [0; 5];
        registered.copy_out(4, &mut out);
        assert_eq!(out, [0, 1, 2, 3, 0]);
        let mut memory = registered.deregister().expect("deregistered");
        assert_eq!(memory.as_mut_slice()[5..8], [1, 2, 3]);
    }
}

#[test]
fn dmabufs_are_asked_for() {
    let Some(context) = device() else { return };
    let domain = ProtectionDomain::new(&context).expect("a domain");
    let supported = dmabuf_support(&domain).expect("an answer");
    println!("dma-bufs: {supported}");
    if context.name().starts_with("rxe") {
        assert!(!supported, "soft-RoCE of Linux 6.1 has none");
    }
}

/// Takes this thread's leave to lock memory beyond the limit, and sets the process's limit.
fn limit_locked_memory(bytes: u64) -> libc::rlimit {
    /// CAP_IPC_LOCK, and the interface's version with 64 bits.
    const IPC_LOCK: u32 = 14;
    const VERSION: u32 = 0x2008_0522;
    let header = [VERSION, 0];
    let mut sets = [0u32; 6];
    let mut before = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: header and sets have the sizes of that version; the limits are valid structs.
    unsafe {
        assert_eq!(
            libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()),
            0
        );
        sets[0] &= !(1 << IPC_LOCK);
        assert_eq!(
            libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()),
            0
        );
        assert_eq!(libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut before), 0);
        let limit = libc::rlimit {
            rlim_cur: bytes,
            ..before
        };
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit), 0);
    }
    before
}

#[test]
fn memory_beyond_the_limit_is_refused_with_what_helps() {
    let Some(context) = device() else { return };
    let domain = ProtectionDomain::new(&context).expect("a domain");
    let memory = HostMemory::new(8 << 20, Pages::Small).expect("memory");
    // A thread of its own, since what it gives up is gone for it.
    let (error, mut memory) = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let before = limit_locked_memory(1 << 20);
            let refused = Registered::new(&domain, memory, Access::LOCAL_READ);
            // SAFETY: the struct is valid.
            unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &before) };
            refused.expect_err("too much")
        });
        thread.join().expect("a thread")
    });
    println!("{error}");
    assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
    assert!(error.to_string().contains("RLIMIT_MEMLOCK"), "{error}");
    memory.as_mut_slice()[0] = 1;
}
