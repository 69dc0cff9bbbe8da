//! What clients hand over as memory.

use super::*;

#[test]
fn regions_that_cannot_be_trusted_are_refused() {
    let server = Server::start(ShmConfig::default());
    let stream = server.member();
    let plain = |bytes: u64, seals: SealFlags| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("hostile", flags).unwrap();
        ftruncate(&fd, bytes).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    };
    let sealed = SealFlags::SHRINK | SealFlags::GROW;
    let file = OwnedFd::from(tempfile::tempfile().unwrap());
    let cases = [
        (
            plain(4096, SealFlags::empty()),
            4096,
            Status::RegionUnsealed,
        ),
        (plain(4096, SealFlags::GROW), 4096, Status::RegionUnsealed),
        (plain(4096, SealFlags::SHRINK), 4096, Status::RegionUnsealed),
        (plain(4096, sealed), 8192, Status::RegionRefused),
        (plain(4096, sealed), 1, Status::RegionRefused),
        (plain(0, sealed), 0, Status::RegionRefused),
        // Neither whole pages nor, the second, allocated.
        (plain(4000, sealed), 4000, Status::RegionRefused),
        (plain(4096, sealed), 4096, Status::RegionRefused),
        (plain(4096, sealed), u64::MAX, Status::RegionRefused),
        (
            plain(4096, sealed | SealFlags::WRITE),
            4096,
            Status::RegionRefused,
        ),
        (file, 4096, Status::RegionRefused),
    ];
    for (i, (fd, bytes, status)) in cases.iter().enumerate() {
        stream.tell(
            &Control::Register {
                bytes: *bytes,
                rights: Rights::Write,
            },
            &[fd.as_fd()],
        );
        assert_eq!(stream.refusal(), *status, "case {i}");
    }
    // Without a descriptor, with two, with many, and one with a message that has none.
    let good = sealed_memfd("good", 4096, HugePages::Off).unwrap();
    let register = Control::Register {
        bytes: 4096,
        rights: Rights::Write,
    };
    for count in [0, 2, 3, 100] {
        stream.tell(&register, &vec![good.as_fd(); count]);
        assert_eq!(stream.refusal(), Status::Malformed, "{count} descriptors");
    }
    stream.tell(&Control::ListTables { first: 0 }, &[good.as_fd()]);
    assert_eq!(stream.refusal(), Status::Malformed);
    // After all that the connection still works.
    stream.tell(&register, &[good.as_fd()]);
    assert_eq!(stream.answer(), Some(Control::Registered { region: 0 }));
    let shown = server.server.connections();
    assert_eq!((shown.len(), shown[0].client.as_str()), (1, "raw"));
    assert_eq!(shown[0].pid, std::process::id() as i32);
    until("the region is shown", || {
        let shown = server.server.connections();
        (shown[0].regions, shown[0].region_bytes) == (1, 4096)
    });
    server.check_others();
}

#[test]
fn descriptors_are_not_kept() {
    let server = Server::start(ShmConfig::default());
    let stream = server.member();
    let probe = sealed_memfd("kept-or-not", 4096, HugePages::Off).unwrap();
    let open = || {
        let entries = std::fs::read_dir("/proc/self/fd").unwrap();
        entries
            .filter_map(|e| std::fs::read_link(e.unwrap().path()).ok())
            .filter(|link| link.to_string_lossy().contains("kept-or-not"))
            .count()
    };
    assert_eq!(open(), 1);
    for _ in 0..50 {
        stream.tell(&Control::ListTables { first: 0 }, &[probe.as_fd(); 20]);
        assert_eq!(stream.refusal(), Status::Malformed);
        stream.tell(
            &Control::Register {
                bytes: 4096,
                rights: Rights::Write,
            },
            &[probe.as_fd()],
        );
        let Some(Control::Registered { region }) = stream.answer() else {
            panic!("registered");
        };
        stream.tell(&Control::Unregister { region }, &[]);
        assert_eq!(stream.answer(), Some(Control::Unregistered { region }));
    }
    assert_eq!(open(), 1);
}

#[test]
fn regions_are_bounded_together() {
    let server = Server::start(ShmConfig {
        max_region_bytes: 3 * 4096,
        ..ShmConfig::default()
    });
    let stream = server.member();
    let memory = sealed_memfd("good", 8192, HugePages::Off).unwrap();
    let register = Control::Register {
        bytes: 8192,
        rights: Rights::Write,
    };
    stream.tell(&register, &[memory.as_fd()]);
    assert_eq!(stream.answer(), Some(Control::Registered { region: 0 }));
    stream.tell(&register, &[memory.as_fd()]);
    match stream.answer() {
        Some(Control::Refused { refusal, detail }) => {
            assert_eq!(refusal.status, Status::LimitReached);
            assert!(
                detail.contains("8192") && detail.contains("12288"),
                "{detail}"
            );
        }
        other => panic!("{other:?}"),
    }
    stream.tell(&Control::Unregister { region: 0 }, &[]);
    assert_eq!(stream.answer(), Some(Control::Unregistered { region: 0 }));
    stream.tell(&register, &[memory.as_fd()]);
    assert_eq!(stream.answer(), Some(Control::Registered { region: 0 }));
}

#[test]
fn all_clients_regions_are_bounded_together() {
    let server = Server::start(ShmConfig {
        total_region_bytes: 3 * 4096,
        ..ShmConfig::default()
    });
    let (one, other) = (server.member(), server.member());
    let memory = sealed_memfd("good", 8192, HugePages::Off).unwrap();
    let register = Control::Register {
        bytes: 8192,
        rights: Rights::Write,
    };
    one.tell(&register, &[memory.as_fd()]);
    assert_eq!(one.answer(), Some(Control::Registered { region: 0 }));
    other.tell(&register, &[memory.as_fd()]);
    assert_eq!(other.refusal(), Status::LimitReached);
    drop(one);
    until("the other's turn", || {
        other.tell(&register, &[memory.as_fd()]);
        matches!(other.answer(), Some(Control::Registered { .. }))
    });
}

/// Control memory is on the server's account, whoever keeps a descriptor of it.
#[test]
fn control_memory_is_freed_though_it_is_kept() {
    let server = Server::start(ShmConfig::default());
    let stream = server.stream();
    stream.tell(&hello("keeps"), &[]);
    let mut bytes = vec![0; MAX_CONTROL_BYTES];
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut bytes)];
    recvmsg(&stream.0, parts, &mut ancillary, RecvFlags::empty()).unwrap();
    let kept: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|part| match part {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    let held = || fstat(&kept[0]).unwrap().st_blocks * 512;
    assert!(held() >= 2 * 8192, "{}", held());
    drop(stream);
    until("its pages are freed", || held() == 0);
    server.check_others();
}
