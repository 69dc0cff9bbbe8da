//! Ids in the caller's memory are sent and refused as a batch' are.

use proptest::prelude::*;
use rowmill_wire::Place;

use super::split::{Plain, plain};
use super::*;

/// Numbers as they may lie in somebody's memory: signed, of either width, at an odd address.
struct Memory {
    bytes: Vec<u8>,
    wide: bool,
}

impl Memory {
    fn of(numbers: impl IntoIterator<Item = i64>, wide: bool) -> Memory {
        let width = if wide { 8 } else { 4 };
        let bytes = |n: i64| n.to_le_bytes().into_iter().take(width);
        let bytes = std::iter::once(0).chain(numbers.into_iter().flat_map(bytes));
        Memory {
            bytes: bytes.collect(),
            wide,
        }
    }

    fn floats(numbers: impl IntoIterator<Item = f32>) -> Memory {
        Memory::of(numbers.into_iter().map(|x| x.to_bits().into()), false)
    }

    fn window(&self) -> ReadWindow<'_> {
        ReadWindow::over(&self.bytes[1..])
    }

    fn numbers(&self) -> Numbers<'_> {
        match self.wide {
            true => Numbers::bits64(self.window()),
            false => Numbers::bits32(self.window()),
        }
    }
}

/// Lengths, or the offsets that mean the same, beginning with `first`.
fn division(lengths: &[u32], offsets: Option<i64>, wide: bool) -> Memory {
    let Some(first) = offsets else {
        return Memory::of(lengths.iter().map(|&l| l.into()), wide);
    };
    let mut end = first;
    let ends = lengths.iter().map(|&l| {
        end += i64::from(l);
        end
    });
    Memory::of(std::iter::once(first).chain(ends), wide)
}

fn divided(memory: &Memory, offsets: bool) -> ViewDivision<'_> {
    match offsets {
        true => ViewDivision::Offsets(memory.numbers()),
        false => ViewDivision::Lengths(memory.numbers()),
    }
}

/// A session over `lanes` lanes, and a schema of features of which some are weighted.
fn bound_for(lanes: u16, min_bags: u32, weighted: &[bool]) -> (TestSession, BoundSchema) {
    let options = Options {
        source_bytes: 1 << 18,
        ..Options::default()
    };
    let mut s = Session::over(StandIn::new(lanes, 2, min_bags), options).expect("connects");
    let names: Vec<String> = (0..weighted.len()).map(|f| f.to_string()).collect();
    let pooling = |weighted: bool| match weighted {
        true => Pooling::WeightedSum,
        false => Pooling::Sum,
    };
    let features = names.iter().zip(weighted);
    let features = features.map(|(name, &w)| (name.as_str(), "items", pooling(w), DIM));
    let schema = s
        .bind(Schema::side_by_side(200, features).0)
        .expect("bound");
    (s, schema)
}

/// All that was sent: the frames, and the bytes that they name in the source region.
fn sent(s: &TestSession) -> Vec<(Vec<u8>, Vec<u8>)> {
    let frames = s.port.arrived.iter();
    let with_source = frames.map(|arrived| {
        let mut bytes = Vec::new();
        let header = &arrived.header;
        for segment in [&header.lengths, &header.ids, &header.weights] {
            if let Place::Region { region, offset } = segment.place {
                let memory = s.port.memory(rowmill_port::RegionId(region));
                let mut part = vec![0; segment.len as usize];
                memory.expect("registered").read(offset as usize, &mut part);
                bytes.extend(part);
            }
        }
        (arrived.frame.clone(), bytes)
    });
    with_source.collect()
}

fn lengths_of(plain: &Plain, feature: usize) -> Vec<u32> {
    let bags = plain.features[feature].iter();
    bags.map(|(ids, _)| ids.len() as u32).collect()
}

fn ids_of(plain: &Plain, feature: usize) -> Vec<u64> {
    let bags = plain.features[feature].iter();
    bags.flat_map(|(ids, _)| ids.clone()).collect()
}

fn weight(id: u64) -> f32 {
    id as f32 * 0.5
}

/// The batch of the chosen features, weighted where said.
fn batch_of(plain: &Plain, chosen: &[u32], weighted: &[bool]) -> Batch {
    let mut batch = Batch::new(plain.features[0].len()).expect("bags");
    for (&column, &weighted) in chosen.iter().zip(weighted) {
        let (lengths, ids) = (
            lengths_of(plain, column as usize),
            ids_of(plain, column as usize),
        );
        let narrow: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
        let weights: Vec<f32> = ids.iter().map(|&id| weight(id)).collect();
        let slice = match plain.wide {
            true => IdSlice::U64(&ids),
            false => IdSlice::U32(&narrow),
        };
        let lengths = Division::Lengths(&lengths);
        let pushed = match weighted {
            true => batch.push_weighted(lengths, slice, &weights),
            false => batch.push(lengths, slice),
        };
        pushed.expect("adds up");
    }
    batch
}

fn memory_of(ids: &[u64], wide: bool) -> Memory {
    Memory::of(ids.iter().map(|&id| id as i64), wide)
}

#[derive(Clone, Debug)]
struct Form {
    wide: bool,
    offsets: Option<i64>,
    /// As one tensor, with the columns that each feature takes, or each its own.
    tensor: bool,
    columns: Option<Vec<u32>>,
    weighted: Vec<bool>,
    lanes: u16,
    min_bags: u32,
}

fn form() -> impl Strategy<Value = (Plain, Form)> {
    plain().prop_flat_map(|plain| {
        let columns = plain.features.len();
        let chosen = prop::collection::vec(0..columns as u32, 1..8);
        let weighted = prop::collection::vec(any::<bool>(), 8);
        let (tensor, wide) = (any::<bool>(), any::<bool>());
        let offsets = prop::option::of(-5i64..100);
        let chosen = prop::option::of(chosen);
        let forms = (tensor, wide, offsets, chosen, weighted, 1u16..9, 1u32..40);
        forms.prop_map(
            move |(tensor, wide, offsets, chosen, mut weighted, lanes, min_bags)| {
                let chosen = chosen.filter(|_| tensor);
                weighted.truncate(chosen.as_ref().map_or(columns, Vec::len));
                weighted.iter_mut().for_each(|w| *w &= plain.weighted);
                let form = Form {
                    wide,
                    offsets,
                    tensor,
                    columns: chosen,
                    weighted,
                    lanes,
                    min_bags,
                };
                (plain.clone(), form)
            },
        )
    })
}

/// Submits the view of the form, whose memory is overwritten before anybody reads the frames.
fn submit_view(s: &mut TestSession, schema: &BoundSchema, plain: &Plain, form: &Form) {
    let features = 0..plain.features.len();
    let bags = plain.features[0].len();
    let target = target(s, schema, bags as u32);
    let options = RequestOptions::default();
    let mut memories: Vec<[Memory; 3]> = Vec::new();
    let whole = |lengths: &[u32], ids: &[u64]| {
        [
            division(lengths, form.offsets, form.wide),
            memory_of(ids, plain.wide),
            Memory::floats(ids.iter().map(|&id| weight(id))),
        ]
    };
    let offsets = form.offsets.is_some();
    let sent = if form.tensor {
        let lengths: Vec<u32> = features
            .clone()
            .flat_map(|f| lengths_of(plain, f))
            .collect();
        let ids: Vec<u64> = features.flat_map(|f| ids_of(plain, f)).collect();
        memories.push(whole(&lengths, &ids));
        let [lengths, ids, weights] = &memories[0];
        let weights = form.weighted.contains(&true).then(|| weights.window());
        let view = JaggedView::tensor(bags, divided(lengths, offsets), ids.numbers(), weights);
        let view = match &form.columns {
            Some(columns) => view.with_columns(columns),
            None => view,
        };
        s.submit_view(schema, &view, target, &options)
    } else {
        memories.extend(features.map(|f| whole(&lengths_of(plain, f), &ids_of(plain, f))));
        let features = memories.iter().zip(&form.weighted);
        let features = features.map(|([lengths, ids, weights], weighted)| FeatureView {
            division: divided(lengths, offsets),
            ids: ids.numbers(),
            weights: weighted.then(|| weights.window()),
        });
        let features: Vec<FeatureView<'_>> = features.collect();
        s.submit_view(
            schema,
            &JaggedView::features(bags, &features),
            target,
            &options,
        )
    };
    let _ticket = sent.expect("sent");
    for memory in memories.iter_mut().flatten() {
        memory.bytes.fill(0x55);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    /// Whatever lies in the caller's memory, and how, the dataplane gets what a batch of the same would send.
    #[test]
    fn views_send_what_batches_send((plain, form) in form()) {
        let all: Vec<u32> = (0..plain.features.len() as u32).collect();
        let chosen = form.columns.as_ref().unwrap_or(&all);
        let (mut s, schema) = bound_for(form.lanes, form.min_bags, &form.weighted);
        let batch = batch_of(&plain, chosen, &form.weighted);
        let t = target(&mut s, &schema, batch.bags());
        s.submit(&schema, &batch, t, &RequestOptions::default()).expect("sent");
        let (mut other, schema) = bound_for(form.lanes, form.min_bags, &form.weighted);
        submit_view(&mut other, &schema, &plain, &form);
        prop_assert_eq!(sent(&s), sent(&other));
    }
}

/// The error for a view, in a session that binds that many features, none weighted.
fn refusal(features: usize, view: &JaggedView<'_>) -> ClientError {
    let (mut s, schema) = bound_for(1, 1, &vec![false; features]);
    let t = target(&mut s, &schema, 1);
    let unsent = s
        .submit_view(&schema, view, t, &RequestOptions::default())
        .expect_err("refused");
    assert!(s.port.arrived.is_empty() && unsent.target.is_some());
    unsent.error
}

fn batch_refusal(features: usize, view: &JaggedView<'_>) -> BatchError {
    match refusal(features, view) {
        ClientError::Batch(error) => error,
        other => panic!("{other}"),
    }
}

/// Two columns of two bags with ids enough for the lengths or offsets.
fn numbered(division: ViewDivision<'_>, ids: usize) -> BatchError {
    let ids = vec![1i64; ids];
    batch_refusal(2, &JaggedView::tensor(2, division, ids[..].into(), None))
}

fn lengths(lengths: &[i64], ids: usize) -> BatchError {
    numbered(ViewDivision::Lengths(lengths.into()), ids)
}

fn offsets(offsets: &[i64], ids: usize) -> BatchError {
    numbered(ViewDivision::Offsets(offsets.into()), ids)
}

#[test]
fn divisions_that_make_no_sense_are_refused_with_their_place() {
    let negative = |feature, bag, length| BatchError::NegativeLength {
        feature,
        bag,
        length,
    };
    assert_eq!(lengths(&[1, 0, 2, -1], 3), negative(1, 1, -1));
    assert_eq!(lengths(&[i64::MIN, 0, 0, 0], 0), negative(0, 0, i64::MIN));
    let narrow = ViewDivision::Lengths((&[0i32, -7, 0, 0][..]).into());
    assert_eq!(numbered(narrow, 0), negative(0, 1, -7));
    let long = |feature, bag, length| BatchError::LongBag {
        feature,
        bag,
        length,
    };
    assert_eq!(lengths(&[0, 0, 8193, 0], 9000), long(1, 0, 8193));
    assert_eq!(
        lengths(&[0, i64::MAX, 1, 0], 1),
        long(0, 1, i64::MAX as u64)
    );
    let falls = |feature, bag| BatchError::OffsetsFall { feature, bag };
    assert_eq!(offsets(&[0, 2, 2, 3, 2], 2), falls(1, 1));
    assert_eq!(offsets(&[i64::MAX, i64::MIN, 0, 0, 0], 0), falls(0, 0));
    let widest = offsets(&[i64::MIN, i64::MAX, i64::MAX, i64::MAX, i64::MAX], 0);
    assert_eq!(widest, long(0, 0, u64::MAX));
    let sum = |feature, sum, ids| BatchError::LengthSum { feature, sum, ids };
    assert_eq!(lengths(&[1, 1, 2, 0], 3), sum(1, 2, 1));
    assert_eq!(lengths(&[1, 1, 1, 0], 5), sum(1, 3, 5));
    assert_eq!(offsets(&[7, 7, 9, 9, 9], 1), sum(0, 2, 1));
    let count = |feature, given| BatchError::LengthCount {
        feature,
        given,
        bags: 2,
    };
    assert_eq!(lengths(&[1, 0, 1], 2), count(1, 1));
    assert_eq!(offsets(&[0, 1, 1, 2], 2), count(1, 1));
}

#[test]
fn the_same_is_refused_as_in_a_batch_with_the_same_error() {
    let cases: [(&[u32], usize); 6] = [
        (&[1, 1, 2, 0], 3),
        (&[1, 1, 1, 0], 5),
        (&[1, 0, 1], 2),
        (&[0, 8193, 0, 0], 9000),
        (&[], 3),
        (&[2, 0, 9000], 2),
    ];
    for (given, ids) in cases {
        let ids = vec![3i64; ids];
        let error = Batch::new(2).expect("2 bags").fill(2, given, &ids[..]);
        let view = JaggedView::tensor(2, ViewDivision::Lengths(given.into()), ids[..].into(), None);
        assert_eq!(Err(batch_refusal(2, &view)), error, "{given:?}");
    }
}

#[test]
fn features_columns_and_weights_that_do_not_fit_are_refused() {
    let (twos, ids) = ([1i32, 1, 0, 1], [5i64, 6, 7]);
    let twos = ViewDivision::Lengths((&twos[..]).into());
    let tensor = |bags| JaggedView::tensor(bags, twos, (&ids[..]).into(), None);
    assert_eq!(batch_refusal(2, &tensor(0)), BatchError::Bags { bags: 0 });
    assert_eq!(
        batch_refusal(2, &tensor(65_537)),
        BatchError::Bags { bags: 65_537 }
    );
    assert_eq!(
        batch_refusal(2, &tensor(2).with_columns(&[1, 2])),
        BatchError::NoColumn {
            feature: 1,
            column: 2,
            columns: 2
        }
    );
    let many = vec![0; 257];
    assert_eq!(
        batch_refusal(2, &tensor(2).with_columns(&many)),
        BatchError::TooManyFeatures
    );
    for (view, given) in [
        (tensor(2).with_columns(&[0]), 1),
        (tensor(2).with_columns(&[]), 0),
        (tensor(1), 4),
    ] {
        let error = refusal(2, &view);
        let counts =
            matches!(error, ClientError::FeatureCount { given: g, bound: 2 } if g == given);
        assert!(counts, "{error}");
    }
    let weights = Memory::floats([0.5, 1.5]);
    let weighted = JaggedView::tensor(2, twos, (&ids[..]).into(), Some(weights.window()));
    assert_eq!(
        batch_refusal(2, &weighted),
        BatchError::WeightCount {
            feature: 0,
            weights: 2,
            ids: 3
        }
    );
    let weights = Memory::floats([0.5, 1.5, 2.5]);
    let weighted = JaggedView::tensor(2, twos, (&ids[..]).into(), Some(weights.window()));
    let error = refusal(2, &weighted);
    assert!(
        matches!(&error, ClientError::Weights { feature, wanted: false } if feature == "0"),
        "{error}"
    );
    let (mut s, schema) = bound_for(1, 1, &[false, true]);
    let t = target(&mut s, &schema, 2);
    let unsent = s.submit_view(&schema, &tensor(2), t, &RequestOptions::default());
    let error = unsent.expect_err("no weights").error;
    assert!(
        matches!(&error, ClientError::Weights { feature, wanted: true } if feature == "1"),
        "{error}"
    );
    let narrow = [5i32];
    let one = ViewDivision::Lengths((&[1i32][..]).into());
    let feature = |ids| FeatureView {
        division: one,
        ids,
        weights: None,
    };
    let mixed = [feature((&ids[..1]).into()), feature((&narrow[..]).into())];
    assert_eq!(
        batch_refusal(2, &JaggedView::features(1, &mixed)),
        BatchError::MixedWidths { feature: 1 }
    );
}

#[test]
fn a_view_without_ids_is_sent() {
    let (mut s, schema) = bound_for(1, 1, &[false, false]);
    let t = target(&mut s, &schema, 2);
    let none = ViewDivision::Offsets((&[3i64; 5][..]).into());
    let view = JaggedView::tensor(2, none, Numbers::from(&[0i64; 0][..]), None);
    s.submit_view(&schema, &view, t, &RequestOptions::default())
        .expect("sent");
    assert!(
        s.port.arrived[0]
            .bags
            .iter()
            .flatten()
            .all(|(ids, _)| ids.is_empty())
    );
}

#[test]
fn the_steady_path_of_views_allocates_nothing() {
    let (mut s, schema) = bound_for(2, 1, &[false, true, true]);
    s.port.echoes = true;
    let mut target = Some(target(&mut s, &schema, 200));
    let lengths = [3i64; 400];
    let ids = [7i64; 1200];
    let weights = Memory::floats([0.5; 1200]);
    let mut rounds = |s: &mut TestSession, count: usize| {
        for round in 0..count {
            let bags = [2, 200][round % 2];
            let view = JaggedView::tensor(
                bags,
                ViewDivision::Lengths((&lengths[..2 * bags]).into()),
                (&ids[..6 * bags]).into(),
                weights.window().part(0, 24 * bags),
            );
            let view = view.with_columns(&[1, 0, 1]);
            let options = RequestOptions::default();
            let taken = target.take().expect("back");
            let ticket = s
                .submit_view(&schema, &view, taken, &options)
                .expect("sent");
            let answer = s.wait(ticket, Wait::Poll).expect("answered");
            target = Some(answer.target);
        }
    };
    rounds(&mut s, 8);
    let measured = allocation_counter::measure(|| rounds(&mut s, 200));
    assert_eq!(measured.count_total, 0, "{measured:?}");
}

#[test]
fn ids_are_counted_as_lengths_and_offsets_say() {
    let (lengths, offsets, ids) = ([2i64, 0, 1, 4], [3i32, 5, 5, 6, 10], [0u32; 10]);
    let lengths = ViewDivision::Lengths((&lengths[..]).into());
    let offsets = ViewDivision::Offsets((&offsets[..]).into());
    let ids = Numbers::from(&ids[..]);
    for division in [lengths, offsets] {
        let view = JaggedView::tensor(2, division, ids, None);
        let counts = |view: &JaggedView<'_>| [0, 1, 2].map(|feature| view.ids_of(feature));
        assert_eq!(counts(&view), [2, 5, 0]);
        assert_eq!(counts(&view.with_columns(&[1, 1, 9])), [5, 5, 0]);
        let weights = None;
        let own = [FeatureView {
            division,
            ids,
            weights,
        }];
        assert_eq!(counts(&JaggedView::features(4, &own)), [7, 0, 0]);
        assert_eq!(counts(&JaggedView::features(9, &own)), [0, 0, 0]);
    }
}
