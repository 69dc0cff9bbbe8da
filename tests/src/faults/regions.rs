//! Memory of a client that changes, shrinks, or goes away.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;
use rowmill_arena::{Arena, HUGE_2M, HugePages, Region, guards_holes, sealed_memfd};
use rowmill_client::PortError;
use rowmill_port::{ClientPort, RegionId};
use rowmill_wire::control::Rights;
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::{CompletionKind, Status};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::Errno;

use super::hostile::Hostile;
use super::patron::bound;
use super::site::Site;
use super::watch::{Scene, beside_an_innocent};
use super::{Happened, Verdict};

/// Requests that are sent while their bytes change.
const CHANGED: u64 = 5000;

/// What became of requests that changed under way.
#[derive(Default)]
struct Tally {
    ok: u64,
    refused: u64,
}

impl Tally {
    /// Whether enough was sent: also of either kind, since else the changes come always too late, or
    /// always too early.
    fn is_enough(&self) -> bool {
        self.ok + self.refused >= CHANGED && self.ok >= CHANGED / 50 && self.refused >= CHANGED / 50
    }

    fn note(&self) -> String {
        format!("{} OK, {} refused", self.ok, self.refused)
    }
}

/// Another thread writes to lengths and ids in the source region.
pub(super) fn changing_data(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
        let fd = sealed_memfd("changing", 4096, HugePages::Off)?;
        let region = hostile
            .shm()
            .register_memfd(fd.as_fd(), 4096, Rights::Both)?;
        // Mapped once more, for the other thread.
        let memory = Region::map(fd.as_fd(), 4096)?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut rng = Rng::with_seed(3);
                let good: Vec<u32> = [2, 1, 1, 2, 7, 9, 7, 0, 1999, 2999].into();
                while !stop.load(Ordering::Relaxed) {
                    let word = rng.usize(0..good.len());
                    let bad = [good[word], 3, 5000, u32::MAX, 8193, rng.u32(..)][rng.usize(0..6)];
                    memory.window().store_u32(4 * word, bad);
                    std::thread::yield_now();
                    memory.window().store_u32(4 * word, good[word]);
                }
            });
            let outcome = send_changing(&mut hostile, region);
            stop.store(true, Ordering::Relaxed);
            outcome
        })
    })
}

fn send_changing(hostile: &mut Hostile, region: RegionId) -> Happened {
    let good: Vec<u8> = [2u32, 1, 1, 2, 7, 9, 7, 0, 1999, 2999]
        .iter()
        .flat_map(|w| w.to_le_bytes())
        .collect();
    hostile
        .raw()
        .memory(region)
        .context("its region")?
        .write(0, &good);
    let frame = hostile.good_in_region().with(|draft| {
        let at = |offset| rowmill_wire::Place::Region {
            region: region.0,
            offset,
        };
        (draft.header.lengths.place, draft.header.ids.place) = (at(0), at(16));
    });
    let frame = frame.frame();
    let mut tally = Tally::default();
    let slots = hostile.raw().welcome().credits;
    while !tally.is_enough() {
        for slot in 0..slots {
            hostile.submit(0, slot, &frame)?;
        }
        for _ in 0..slots {
            match hostile.record(0, bound())?.status {
                Status::Ok => tally.ok += 1,
                Status::LengthsMismatch
                | Status::IdOutOfRange
                | Status::IdNegative
                | Status::TooLarge => {
                    tally.refused += 1;
                }
                other => bail!("{other} for lengths and ids that changed"),
            }
        }
    }
    Ok(tally.note())
}

/// Another thread writes to the slots that frames lie in.
pub(super) fn changing_frames(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
        let frame = hostile.good().frame();
        let mut rng = Rng::with_seed(4);
        let mut tally = Tally::default();
        let slots = hostile.raw().welcome().credits;
        while !tally.is_enough() {
            for slot in 0..slots {
                hostile.submit(0, slot, &frame)?;
            }
            // Without waiting: some of them are being read now. The length in the immediate stays.
            let lane = hostile.shm().raw_lane(0);
            for _ in 0..rng.usize(1..8) {
                let slot = rng.u16(0..slots);
                let at = lane.layout.slot(slot) + rng.usize(0..frame.len() / 4) * 4;
                let bad = [0, 1, rng.u32(..), u32::MAX][rng.usize(0..4)];
                lane.window.store_u32(at, bad);
            }
            let mut left = slots;
            while left > 0 {
                let record = hostile.record(0, bound())?;
                if record.kind == CompletionKind::Slice {
                    continue; // It asks for slices now.
                }
                left -= 1;
                match record.status {
                    Status::Ok => tally.ok += 1,
                    Status::Internal | Status::Unavailable => {
                        bail!("{record:?} for a frame that changed")
                    }
                    _ => tally.refused += 1,
                }
            }
        }
        hostile.is_served()?;
        Ok(tally.note())
    })
}

fn plain(bytes: u64) -> Result<OwnedFd> {
    let fd = memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, bytes)?;
    Ok(fd)
}

fn refuses(
    hostile: &mut Hostile,
    fd: &OwnedFd,
    bytes: u64,
    status: Status,
    part: &str,
) -> Result<()> {
    match hostile
        .shm()
        .register_memfd(fd.as_fd(), bytes, Rights::Both)
    {
        Err(PortError::Refused { refusal, detail }) if refusal.status == status => {
            ensure!(detail.contains(part), "`{detail}` lacks `{part}`");
        }
        other => bail!("{other:?} instead of {status}"),
    }
    hostile.is_served()
}

/// Memory that could be taken away, or is none.
pub(super) fn unsealed(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
        let both = SealFlags::SHRINK | SealFlags::GROW;
        let cases = [
            (
                SealFlags::empty(),
                8192,
                Status::RegionUnsealed,
                "F_SEAL_SHRINK",
            ),
            (
                SealFlags::GROW,
                8192,
                Status::RegionUnsealed,
                "F_SEAL_SHRINK",
            ),
            (
                SealFlags::SHRINK,
                8192,
                Status::RegionUnsealed,
                "F_SEAL_GROW",
            ),
            (both | SealFlags::WRITE, 8192, Status::RegionRefused, "SEAL"),
            (both, 4096, Status::RegionRefused, "8192"),
            (both, 1 << 20, Status::RegionRefused, "8192"),
            (both, u64::MAX, Status::RegionRefused, ""),
            (both, 0, Status::RegionRefused, ""),
        ];
        for (seals, bytes, status, part) in cases {
            let fd = plain(8192)?;
            fcntl_add_seals(&fd, seals)?;
            refuses(&mut hostile, &fd, bytes, status, part)
                .with_context(|| format!("{seals:?}, announced with {bytes} bytes"))?;
        }
        let file = OwnedFd::from(tempfile::tempfile().context("a file")?);
        ftruncate(&file, 8192)?;
        refuses(&mut hostile, &file, 8192, Status::RegionRefused, "memfd").context("a file")?;
        let device = OwnedFd::from(std::fs::File::open("/dev/zero").context("a device")?);
        refuses(&mut hostile, &device, 8192, Status::RegionRefused, "").context("a device")?;
        Ok(format!("{} cases", cases.len() + 2))
    })
}

/// An unsealed region is truncated after its refusal; a sealed one can't be.
pub(super) fn truncated(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
        let fd = plain(1 << 20)?;
        refuses(
            &mut hostile,
            &fd,
            1 << 20,
            Status::RegionUnsealed,
            "F_SEAL_SHRINK",
        )?;
        ftruncate(&fd, 0)?;
        hostile.is_served().context("after it was truncated")?;
        let fd = sealed_memfd("sealed", 8192, HugePages::Off)?;
        let region = hostile
            .shm()
            .register_memfd(fd.as_fd(), 8192, Rights::Both)?;
        for bytes in [0, 4096, 12_288] {
            let outcome = ftruncate(&fd, bytes);
            ensure!(
                outcome == Err(Errno::PERM),
                "a sealed region: ftruncate to {bytes}: {outcome:?}"
            );
        }
        into(&mut hostile, region, Status::Ok)?;
        Ok("refused, then truncated; sealed: EPERM".into())
    })
}

/// A good request with its results in this region, at its start.
fn into(hostile: &mut Hostile, region: RegionId, expected: Status) -> Result<()> {
    let draft = hostile
        .good()
        .with(|draft| draft.header.target_region = region.0);
    let record = hostile.ask(&draft.frame())?;
    ensure!(
        record.status == expected,
        "{} instead of {expected}",
        record.status
    );
    Ok(())
}

/// A good request with its ids at the start of this region.
fn from(hostile: &mut Hostile, region: RegionId, expected: Status) -> Result<()> {
    let draft = hostile.good().with(|draft| {
        draft.header.ids.place = rowmill_wire::Place::Region {
            region: region.0,
            offset: 0,
        };
    });
    let record = hostile.ask(&draft.frame())?;
    ensure!(
        record.status == expected,
        "{} instead of {expected}",
        record.status
    );
    Ok(())
}

fn punch(fd: &OwnedFd, bytes: usize) -> Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(fd, flags, 0, bytes as u64).context("punching a hole")
}

/// A hole in small pages is memory taken away; without a guard the kernel gives zeros.
pub(super) fn hole(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
        let status = match guards_holes() {
            true => Status::RegionLost,
            false => Status::Ok,
        };
        for _ in 0..100 {
            for step in [into, from] {
                let fd = sealed_memfd("holes", 1 << 20, HugePages::Off)?;
                let region = hostile
                    .shm()
                    .register_memfd(fd.as_fd(), 1 << 20, Rights::Both)?;
                punch(&fd, 1 << 20)?;
                step(&mut hostile, region, status)?;
                hostile.is_served()?;
                hostile.raw().unregister(region)?;
            }
        }
        Ok(format!("200 holes: {status}"))
    })
}

/// A hole in huge pages that nobody can fill: the memory is gone.
pub(super) fn hole_without_a_page(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        for reading in [false, true] {
            lose_a_region(scene, reading)?;
        }
        Ok("lost while written, lost while read".into())
    })
}

fn lose_a_region(scene: &mut Scene<'_>, reading: bool) -> Result<()> {
    let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
    let fd = sealed_memfd("hostile", 2 * HUGE_2M, HugePages::Require)?;
    let region = hostile
        .shm()
        .register_memfd(fd.as_fd(), 2 * HUGE_2M as u64, Rights::Both)?;
    into(&mut hostile, region, Status::Ok)?;
    punch(&fd, HUGE_2M)?;
    let mut hoard = Vec::new();
    while let Ok(arena) = Arena::allocate(HUGE_2M, HugePages::Require) {
        hoard.push(arena);
    }
    ensure!(!hoard.is_empty(), "the page of the hole did not come free");
    if reading {
        from(&mut hostile, region, Status::RegionLost)?;
    } else {
        into(&mut hostile, region, Status::RegionLost)?;
    }
    // It stays lost, other regions of the same client don't, and it can be given up.
    into(&mut hostile, region, Status::RegionLost)?;
    from(&mut hostile, region, Status::RegionLost)?;
    hostile.is_served()?;
    hostile.raw().unregister(region)?;
    into(&mut hostile, region, Status::UnknownRegion)
}

/// A region is given up while a long request writes to it.
pub(super) fn given_up(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
        let frame = hostile.long().frame();
        assert!(frame.len() <= SLOT_BYTES);
        hostile.submit(0, 0, &frame)?;
        let began = Instant::now();
        let target = hostile.target;
        hostile.raw().unregister(target)?;
        let record = hostile.record(0, bound())?;
        ensure!(record.status == Status::UnknownRegion, "{record:?}");
        Ok(format!(
            "given up after {:.1} ms",
            began.elapsed().as_secs_f64() * 1e3
        ))
    })
}

/// Results for the region of request data, request data out of the region of results.
pub(super) fn misused(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
        let (source, target) = (hostile.source, hostile.target);
        for _ in 0..20 {
            into(&mut hostile, source, Status::RegionForbidden)?;
            from(&mut hostile, target, Status::RegionForbidden)?;
            hostile.is_served()?;
        }
        Ok("40 cases".into())
    })
}
