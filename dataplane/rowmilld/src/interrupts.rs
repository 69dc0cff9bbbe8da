//! Which CPUs a disk's interrupts come to.
//!
//! A disk with a queue for each CPU interrupts the one that reads, and there is nothing to choose. One with a single queue, such as those of
//! most virtual machines, interrupts the same CPU whoever reads, some microseconds for each read: a worker there is held up by what any
//! worker reads.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};
use rustix::thread::CpuSet;

/// CPUs that interrupts of the disks below these files come to, ascending. None where each CPU has a queue of its own, or where the kernel
/// doesn't tell: of file systems that are on no block device of their own (btrfs, overlays, networks), and of devices without MSI.
pub(crate) fn cpus_of(files: &[PathBuf]) -> Vec<usize> {
    let mut cpus = BTreeSet::new();
    let numbers = files
        .iter()
        .filter_map(|file| Some(rustix::fs::stat(file).ok()?.st_dev));
    for number in numbers.collect::<BTreeSet<_>>() {
        let device = format!("/sys/dev/block/{}:{}", major(number), minor(number));
        of_device(Path::new("/"), Path::new(&device), &mut cpus);
    }
    cpus.into_iter().collect()
}

/// Adds those of a block device's folder, or of the devices that it is made of. `root` is above `sys` and `proc`.
fn of_device(root: &Path, device: &Path, cpus: &mut BTreeSet<usize>) {
    let Ok(device) = device.canonicalize() else {
        return;
    };
    // A partition's folder is in its disk's, and that in the controller's.
    let first = |name: &str| {
        device
            .ancestors()
            .map(|at| at.join(name))
            .find(|at| at.is_dir())
    };
    let below = first("slaves").map_or_else(Vec::new, |parts| entries(&parts));
    if !below.is_empty() {
        // The kernel lets no device be made of itself.
        below.iter().for_each(|part| of_device(root, part, cpus));
        return;
    }
    let (Some(queues), Some(vectors)) = (first("mq"), first("msi_irqs")) else {
        return;
    };
    if entries(&queues).len() != 1 {
        return;
    }
    // Others tell of changes of its settings, and come hardly ever.
    let busiest = entries(&vectors)
        .iter()
        .filter_map(|vector| vector.file_name()?.to_str().map(str::to_owned))
        .max_by_key(|vector| {
            let counts = format!("sys/kernel/irq/{vector}/per_cpu_count");
            let counts = fs::read_to_string(root.join(counts)).unwrap_or_default();
            let counts = counts.trim().split(',');
            counts
                .filter_map(|count| count.parse::<u64>().ok())
                .sum::<u64>()
        });
    if let Some(vector) = busiest {
        let list = format!("proc/irq/{vector}/effective_affinity_list");
        cpus.extend(listed(
            &fs::read_to_string(root.join(list)).unwrap_or_default(),
        ));
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// A kernel's list of CPUs, such as `0-2,5`. What is none is left out.
fn listed(text: &str) -> impl Iterator<Item = usize> {
    text.trim().split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            text.parse::<usize>()
                .ok()
                .filter(|&cpu| cpu < CpuSet::MAX_CPU)
        };
        match (number(first), number(last)) {
            (Some(first), Some(last)) => first..last + 1,
            _ => 0..0,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A machine's files: a disk with partitions, with so many queues, whose second vector comes to CPUs.
    fn machine(queues: usize, cpus: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let file = root.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        put("sys/devices/pci/nvme0/disk/disk1/partition", "1");
        fs::create_dir_all(root.path().join("sys/devices/pci/nvme0/disk/slaves")).unwrap();
        for queue in 0..queues {
            put(
                &format!("sys/devices/pci/nvme0/disk/mq/{queue}/cpu_list"),
                "",
            );
        }
        for (vector, counts, comes_to) in [(7, "3,0", "0"), (8, "0,900", cpus)] {
            put(&format!("sys/devices/pci/msi_irqs/{vector}"), "msix");
            put(&format!("sys/kernel/irq/{vector}/per_cpu_count"), counts);
            let list = format!("proc/irq/{vector}/effective_affinity_list");
            put(&list, &format!("{comes_to}\n"));
        }
        root
    }

    fn found(root: &Path, device: &str) -> Vec<usize> {
        let mut cpus = BTreeSet::new();
        of_device(root, &root.join(device), &mut cpus);
        cpus.into_iter().collect()
    }

    #[test]
    fn a_disk_with_one_queue_interrupts_where_its_busiest_vector_comes() {
        let machine = machine(1, "1,4-5");
        for device in [
            "sys/devices/pci/nvme0/disk",
            "sys/devices/pci/nvme0/disk/disk1",
        ] {
            assert_eq!(found(machine.path(), device), [1, 4, 5]);
        }
        assert!(found(machine.path(), "sys/devices/none").is_empty());
    }

    #[test]
    fn a_disk_with_a_queue_for_each_cpu_interrupts_who_reads() {
        let machine = machine(2, "1");
        assert!(found(machine.path(), "sys/devices/pci/nvme0/disk").is_empty());
    }

    #[test]
    fn a_volume_is_what_it_is_made_of() {
        let machine = machine(1, "1");
        let volume = machine.path().join("sys/devices/virtual/md0");
        let parts = volume.join("slaves");
        for folder in [&parts, &volume.join("md0p1")] {
            fs::create_dir_all(folder).unwrap();
        }
        symlink(
            machine.path().join("sys/devices/pci/nvme0/disk/disk1"),
            parts.join("disk1"),
        )
        .unwrap();
        for device in ["sys/devices/virtual/md0", "sys/devices/virtual/md0/md0p1"] {
            assert_eq!(found(machine.path(), device), [1]);
        }
    }

    #[test]
    fn what_is_no_list_names_no_cpu() {
        let list = |text| listed(text).collect::<Vec<_>>();
        assert_eq!(list("0-2,5\n"), [0, 1, 2, 5]);
        for text in ["", "\n", "a-b", "3-1", "-", "0-9999999999"] {
            assert!(list(text).is_empty(), "{text:?}");
        }
    }

    #[test]
    fn files_that_are_not_there_interrupt_nobody() {
        assert!(cpus_of(&["/nowhere/at/all".into()]).is_empty());
    }
}
