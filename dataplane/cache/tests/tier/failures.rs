//! What is counted of each file.

use std::sync::Arc;

use rowmill_arena::ReadError;
use rowmill_cache::figures::{TIER_COUNTS, TierFigures};
use rowmill_cache::tier::{Failures, FileFailures, FileReads, FileTier, Tier, TierError};
use rowmill_table::PAGE_BYTES;

use super::device::ScriptedDevice;
use super::model::{Answers, Model, poll, wanted};

#[test]
fn what_each_file_gives_and_fails_to_give_is_counted_of_it() {
    let model = Model::new();
    let device = ScriptedDevice::default();
    device.0.borrow_mut().files = model.files.clone();
    device.0.borrow_mut().files[0][PAGE_BYTES] ^= 1;
    device.0.borrow_mut().slots = Some(5);
    let mut tier = FileTier::over(device.clone(), 16, 2, 1000);
    let files = [0, 1].map(|file: usize| {
        let info = &model.generation.tables()[file];
        let checksums = model.generation.page_checksums(&info.name).unwrap();
        let (failures, reads) = (Arc::<FileFailures>::default(), Arc::<FileReads>::default());
        let counted = (Arc::clone(&failures), Arc::clone(&reads));
        tier.add_file(
            info.clone(),
            Arc::new(checksums),
            counted.0,
            counted.1,
            file,
        );
        (failures, reads)
    });
    let failures = files.each_ref().map(|(failures, _)| failures);
    let mut answers = Answers::new();
    for (token, (table, row)) in (0..).zip([(0, 0), (1, 0), (0, 400), (1, 2000)]) {
        tier.fetch(0, wanted(table, row, token)).unwrap();
    }
    poll(&mut tier, 0, &mut answers);
    device.0.borrow_mut().due = vec![
        (0, None),
        (1, Some(ReadError::Os(5))),
        (2, Some(ReadError::Truncated)),
    ];
    poll(&mut tier, 0, &mut answers);
    poll(&mut tier, 1000, &mut answers);
    assert_eq!(answers[&3], Err(TierError::Late));
    let none = Failures::default();
    let (corrupt, gone, failed, late) = (1, 1, 1, 1);
    let of_first = Failures {
        corrupt,
        gone,
        ..none
    };
    let of_second = Failures {
        failed,
        late,
        ..none
    };
    assert_eq!(failures.map(|f| f.read()), [of_first, of_second]);
    // The second gives a row again.
    tier.fetch(1000, wanted(1, 2000, 4)).unwrap();
    device.0.borrow_mut().due = vec![(3, None)];
    poll(&mut tier, 1701, &mut answers);
    assert_eq!(answers[&4].as_deref(), Ok(model.row(1, 2000)));
    assert_eq!(failures.map(|f| f.is_failing()), [true, false]);
    assert_eq!(failures[1].read(), of_second);
    let reads = files.each_ref().map(|(_, reads)| {
        let (times, sum_ns) = reads.times.read();
        (reads.fetched(), times.iter().sum::<u64>(), sum_ns)
    });
    assert_eq!(reads, [(2, 0, 0), (3, 1, 701)]);
    assert_eq!(TIER_COUNTS[0].name, "reads");
    // The last one's joined the one that was given up.
    assert_eq!(TierFigures::sum([&**tier.figures()])[0], 4);
}
