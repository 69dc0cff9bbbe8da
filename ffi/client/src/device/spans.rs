//! In which pieces an answer is copied: where the vectors of each slice lie.

use rowmill_wire::SplitRule;

use crate::schema::BoundSchema;

/// Consecutive bags, and the bytes of the answer that their vectors fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first_bag: u32,
    pub(crate) bags: u32,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Bytes from one bag's vectors to the next one's, where the vectors of a bag lie side by side and those of the next behind them.
pub(crate) fn row_bytes(schema: &BoundSchema) -> Option<u64> {
    let features = &schema.schema().features;
    let row = features.first()?.stride;
    let is_in_row = |feature: usize| {
        let f = &features[feature];
        let end = f.offset + schema.vector_bytes(feature);
        schema.is_pooled(feature) && f.stride == row && end <= row
    };
    (0..features.len()).all(is_in_row).then_some(row)
}

/// Of how many bags a slice has to be for about `pieces` of them over all parts, of about `least` bytes or more; 0 for a single copy of
/// the whole answer. A part has at most `most` slices.
pub(crate) fn slice_bags(
    row: Option<u64>,
    bags: u32,
    rule: SplitRule,
    pieces: u32,
    most: u32,
    least: u64,
) -> u32 {
    let Some(row) = row else { return 0 };
    let parts = rule.parts(bags);
    let part = bags.div_ceil(parts);
    let worth = u64::from(part) * row / least.max(1);
    let most = worth.min(most.into()).max(1) as u32;
    part.div_ceil((pieces / parts).clamp(1, most))
}

/// Most pieces that an answer has for so many lanes: as many as are wanted, or one a part.
pub(crate) fn most_spans(lanes: u16, pieces: u32) -> usize {
    (pieces as usize).max(lanes.into())
}

/// The pieces of an answer of `bytes` bytes, in the order in which they are expected: the first slice of each part, then the second
/// ones. `slice_bags` is what [`slice_bags`] gave.
pub(crate) fn spans(
    row: Option<u64>,
    bags: u32,
    bytes: u64,
    rule: SplitRule,
    slice_bags: u32,
    out: &mut Vec<Span>,
) {
    out.clear();
    let (Some(row), 1..) = (row, slice_bags) else {
        out.push(Span {
            first_bag: 0,
            bags,
            offset: 0,
            bytes,
        });
        return;
    };
    let longest = bags.div_ceil(rule.parts(bags));
    for slice in 0..longest.div_ceil(slice_bags) {
        let from = slice * slice_bags;
        for (first, part) in rule.split(bags).filter(|(_, part)| from < *part) {
            let first_bag = first + from;
            let bags = slice_bags.min(part - from);
            let offset = u64::from(first_bag) * row;
            out.push(Span {
                first_bag,
                bags,
                offset,
                // Behind the last vector of a row there may be nothing.
                bytes: (u64::from(bags) * row).min(bytes - offset),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: u64 = 512;

    fn all(bags: u32, lanes: u16, pieces: u32) -> (u32, Vec<Span>) {
        let rule = SplitRule { lanes, min_bags: 1 };
        let each = slice_bags(Some(ROW), bags, rule, pieces, 64, 64 << 10);
        let mut out = Vec::new();
        spans(
            Some(ROW),
            bags,
            u64::from(bags) * ROW - 8,
            rule,
            each,
            &mut out,
        );
        (each, out)
    }

    #[test]
    fn spans_cover_the_answer_once_whatever_the_split() {
        for (bags, lanes, slices) in [
            (1, 1, 1),
            (7, 2, 3),
            (1000, 3, 8),
            (65_536, 4, 8),
            (4096, 1, 64),
        ] {
            let (_, mut out) = all(bags, lanes, slices);
            assert!(out.len() <= most_spans(lanes, slices), "{bags} bags");
            out.sort_by_key(|span| span.first_bag);
            let (mut bag, mut byte) = (0, 0);
            for span in &out {
                assert_eq!((span.first_bag, span.offset), (bag, byte), "{bags} bags");
                bag += span.bags;
                byte += span.bytes;
            }
            assert_eq!(
                (bag, byte),
                (bags, u64::from(bags) * ROW - 8),
                "{bags} bags"
            );
        }
    }

    #[test]
    fn parts_take_turns_and_small_answers_have_one_slice() {
        let (each, out) = all(1000, 2, 8);
        assert_eq!(each, 167, "a part of 500 rows is worth 3 slices of 64 KiB");
        let firsts: Vec<u32> = out.iter().map(|span| span.first_bag).collect();
        assert_eq!(firsts, [0, 500, 167, 667, 334, 834]);
        assert_eq!(all(100, 2, 4).1.len(), 2);
    }

    #[test]
    fn answers_without_rows_are_one_piece() {
        let rule = SplitRule {
            lanes: 4,
            min_bags: 1,
        };
        assert_eq!(slice_bags(None, 100, rule, 8, 64, 1), 0);
        let mut out = Vec::new();
        spans(None, 100, 777, rule, 0, &mut out);
        let whole = Span {
            first_bag: 0,
            bags: 100,
            offset: 0,
            bytes: 777,
        };
        assert_eq!(out, [whole]);
    }
}
