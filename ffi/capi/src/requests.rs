//! Requests and answers between the header's structs and the client's.

use core::ffi::c_void;
use core::ptr::NonNull;
use core::time::Duration;

use rowmill_client::{FeatureView, JaggedView, Numbers, ReadWindow, RequestOptions, ViewDivision};

use crate::abi::rowmill_batch_layout::{ROWMILL_BY_FEATURE, ROWMILL_TENSOR};
use crate::abi::{
    ROWMILL_PARTIALS, rowmill_answer, rowmill_batch, rowmill_jagged, rowmill_request,
};
use crate::client::Taken;
use crate::error::{Error, of_outcome};
use crate::input;
use crate::schema::Schema;

/// Most features of a schema, so most parts of a batch and most columns that are chosen.
const MOST_PARTS: u32 = rowmill_client::MAX_FEATURES as u32;

/// The caller's arrays of a batch.
pub(crate) struct Arrays {
    parts: Vec<FeatureView<'static>>,
    columns: Option<Vec<u32>>,
    bags: usize,
    tensor: bool,
}

impl Arrays {
    /// Looks at what a batch points to.
    ///
    /// # Safety
    /// Its pointers are NULL, or point to as many elements as it says; those of ids, lengths, offsets and weights are used for
    /// as long as this is.
    pub(crate) unsafe fn of(batch: &rowmill_batch) -> Result<Arrays, Error> {
        input::unused(batch.reserved, "batch.reserved")?;
        let tensor = match batch.layout {
            layout if layout == ROWMILL_BY_FEATURE as u32 => false,
            layout if layout == ROWMILL_TENSOR as u32 => true,
            other => {
                return Err(Error::invalid(format!(
                    "batch.layout is {other}, which is none; give a rowmill_batch_layout"
                )));
            }
        };
        for (what, count) in [("n_parts", batch.n_parts), ("n_columns", batch.n_columns)] {
            if count > MOST_PARTS {
                return Err(Error::invalid(format!(
                    "batch.{what} is {count}; a schema has at most {MOST_PARTS} features"
                )));
            }
        }
        if tensor && batch.n_parts != 1 {
            return Err(Error::invalid(format!(
                "batch.n_parts is {}; a tensor (ROWMILL_TENSOR) has one part, with the ids of all features",
                batch.n_parts
            )));
        }
        if batch.columns.is_null() != (batch.n_columns == 0)
            || (!tensor && !batch.columns.is_null())
        {
            return Err(Error::invalid(
                "batch.columns and batch.n_columns don't go together; give the column of each feature of a tensor, or NULL and 0",
            ));
        }
        // SAFETY: as this function's.
        let given = unsafe { input::read_all(batch.parts, batch.n_parts as usize, "batch.parts") }?;
        let parts = given.iter().enumerate();
        // SAFETY: as this function's.
        let parts = parts.map(|(at, part)| unsafe { view(part, at) });
        let columns = (!batch.columns.is_null()).then(|| {
            let columns = 0..batch.n_columns as usize;
            // SAFETY: there are as many of them, as this function's caller says.
            let column = |at| unsafe { batch.columns.add(at).read_unaligned() };
            columns.map(column).collect()
        });
        Ok(Arrays {
            parts: parts.collect::<Result<_, _>>()?,
            columns,
            bags: batch.bags as usize,
            tensor,
        })
    }

    /// As the client takes it.
    pub(crate) fn view(&self) -> JaggedView<'_> {
        match &*self.parts {
            [all] if self.tensor => {
                let view = JaggedView::tensor(self.bags, all.division, all.ids, all.weights);
                match &self.columns {
                    Some(columns) => view.with_columns(columns),
                    None => view,
                }
            }
            parts => JaggedView::features(self.bags, parts),
        }
    }
}

/// The arrays of one part.
///
/// # Safety
/// Its pointers are NULL, or point to as many elements as it says, for as long as what is returned is used.
unsafe fn view(part: &rowmill_jagged, at: usize) -> Result<FeatureView<'static>, Error> {
    let of = |what: &str| format!("batch.parts[{at}].{what}");
    input::unused(part.reserved, &of("reserved"))?;
    // SAFETY: as this function's, here and below.
    let ids = unsafe { numbers(part.ids, part.n_ids, part.id_bits, &of("ids"), "id_bits") }?;
    let division = match (part.lengths.is_null(), part.offsets.is_null()) {
        (false, true) => ("lengths", part.lengths),
        (true, false) => ("offsets", part.offsets),
        _ => {
            return Err(Error::invalid(format!(
                "batch.parts[{at}] must have lengths or offsets: one of them, with NULL for the other"
            )));
        }
    };
    let (count, bits) = (part.n_divisions, part.division_bits);
    // SAFETY: see above.
    let numbers = unsafe { numbers(division.1, count, bits, &of(division.0), "division_bits") }?;
    let weights = match part.weights.is_null() {
        true => None,
        // SAFETY: see above; there is one for each id.
        false => Some(unsafe { window(part.weights.cast(), part.n_ids, 4, &of("weights")) }?),
    };
    Ok(FeatureView {
        division: match division.0 {
            "lengths" => ViewDivision::Lengths(numbers),
            _ => ViewDivision::Offsets(numbers),
        },
        ids,
        weights,
    })
}

/// An array of whole numbers.
///
/// # Safety
/// As [`view`]'s.
unsafe fn numbers(
    from: *const c_void,
    count: u64,
    bits: u32,
    what: &str,
    field: &str,
) -> Result<Numbers<'static>, Error> {
    let make = match bits {
        32 => Numbers::bits32,
        64 => Numbers::bits64,
        other => {
            return Err(Error::invalid(format!(
                "{what}: {field} is {other}; set it to 32 or 64"
            )));
        }
    };
    // SAFETY: as this function's.
    Ok(make(unsafe {
        window(from, count, u64::from(bits) / 8, what)
    }?))
}

/// The bytes of an array.
///
/// # Safety
/// As [`view`]'s.
unsafe fn window(
    from: *const c_void,
    count: u64,
    width: u64,
    what: &str,
) -> Result<ReadWindow<'static>, Error> {
    let start = match NonNull::new(from.cast_mut().cast::<u8>()) {
        Some(start) => start,
        None if count == 0 => NonNull::dangling(),
        None => {
            return Err(Error::invalid(format!(
                "{what} is NULL, but has {count} elements; give them"
            )));
        }
    };
    let most = isize::MAX as u64 / width;
    if count > most {
        return Err(Error::invalid(format!(
            "{what} has {count} elements, which is more than there is memory; give their number"
        )));
    }
    // SAFETY: there are as many elements, as this function's caller says, and nobody in Rust refers to them.
    Ok(unsafe { ReadWindow::from_raw(start, (count * width) as usize) })
}

/// The client's options for the caller's, and how long to wait for a slot.
pub(crate) fn options(given: &rowmill_request) -> Result<(RequestOptions, Duration), Error> {
    input::unused(given.flags & !ROWMILL_PARTIALS, "request.flags")?;
    let options = RequestOptions {
        remaining: (given.deadline_us > 0).then(|| Duration::from_micros(given.deadline_us)),
        partials: given.flags & ROWMILL_PARTIALS != 0,
        generation: given.generation,
        ..RequestOptions::default()
    };
    Ok((options, Duration::from_micros(given.wait_us)))
}

/// The client's options for those of a prefetch.
pub(crate) fn of_prefetch(given: &rowmill_request) -> Result<RequestOptions, Error> {
    input::unused(given.flags, "request.flags")?;
    for (what, number) in [("generation", given.generation), ("wait_us", given.wait_us)] {
        if number != 0 {
            return Err(Error::invalid(format!(
                "request.{what} is {number}; a prefetch has a deadline only: set it to 0"
            )));
        }
    }
    Ok(options(given)?.0)
}

/// How long to wait: below 0 for as long as it takes.
pub(crate) fn limit(timeout_us: i64) -> Duration {
    u64::try_from(timeout_us).map_or(Duration::MAX, Duration::from_micros)
}

/// The header's struct of an answer; its result goes back to the caller. Beside it, why there is none.
pub(crate) fn answer(taken: &Taken) -> (rowmill_answer, Result<(), Error>) {
    let (status, feature, position) = of_outcome(&taken.reply.outcome);
    let answer = rowmill_answer {
        size: 0,
        status,
        ticket: taken.ticket,
        generation: taken.reply.generation,
        service_ns: taken.reply.service_ns,
        feature,
        position,
    };
    let outcome = taken.reply.outcome.map_err(|failure| Error {
        code: status,
        text: text(&taken.schema, feature, &failure.to_string()),
    });
    (answer, outcome)
}

/// A sentence about a request, with the name of the feature that it is about.
fn text(schema: &Schema, feature: u32, sentence: &str) -> String {
    match schema.name(feature) {
        Some(name) => format!("`{name}`, {sentence}"),
        None => sentence.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr;

    fn part() -> rowmill_jagged {
        static NUMBERS: [u32; 2] = [1, 1];
        rowmill_jagged {
            size: 64,
            id_bits: 32,
            division_bits: 32,
            reserved: 0,
            ids: NUMBERS.as_ptr().cast(),
            n_ids: 2,
            lengths: NUMBERS.as_ptr().cast(),
            offsets: ptr::null(),
            n_divisions: 2,
            weights: ptr::null(),
        }
    }

    fn batch(parts: &[rowmill_jagged]) -> rowmill_batch {
        rowmill_batch {
            size: 40,
            bags: 2,
            layout: 0,
            n_parts: parts.len() as u32,
            parts: parts.as_ptr(),
            columns: ptr::null(),
            n_columns: 0,
            reserved: 0,
        }
    }

    /// Spoils a batch of one part, and gives what is said about it.
    fn said(spoil: impl FnOnce(&mut rowmill_batch, &mut rowmill_jagged)) -> String {
        let mut parts = [part()];
        let mut whole = batch(&parts);
        spoil(&mut whole, &mut parts[0]);
        whole.parts = if whole.parts.is_null() {
            ptr::null()
        } else {
            parts.as_ptr()
        };
        // SAFETY: what it points to is there, and is refused where it is not.
        let arrays = unsafe { Arrays::of(&whole) };
        arrays.err().map(|error| error.text).unwrap_or_default()
    }

    #[test]
    fn every_field_that_is_wrong_is_named() {
        assert_eq!(said(|_, _| ()), "");
        let cases: [(&str, String); 13] = [
            ("batch.reserved", said(|b, _| b.reserved = 1)),
            ("batch.layout is 9", said(|b, _| b.layout = 9)),
            ("batch.n_parts is 100000", said(|b, _| b.n_parts = 100_000)),
            ("batch.parts is NULL", said(|b, _| b.parts = ptr::null())),
            ("batch.columns", said(|b, _| b.n_columns = 1)),
            (
                "batch.n_parts is 0",
                said(|b, _| (b.layout, b.n_parts) = (1, 0)),
            ),
            ("batch.parts: its size is 3", said(|_, p| p.size = 3)),
            (
                "ids: id_bits is 8; set it to 32 or 64",
                said(|_, p| p.id_bits = 8),
            ),
            ("division_bits is 0", said(|_, p| p.division_bits = 0)),
            ("ids is NULL, but has 2", said(|_, p| p.ids = ptr::null())),
            ("lengths or offsets", said(|_, p| p.lengths = ptr::null())),
            ("lengths or offsets", said(|_, p| p.offsets = p.lengths)),
            ("more than there is memory", said(|_, p| p.n_ids = u64::MAX)),
        ];
        for (wanted, found) in cases {
            assert!(found.contains(wanted), "{wanted}: {found}");
        }
    }

    #[test]
    fn limits_of_waits() {
        assert_eq!(limit(-1), Duration::MAX);
        assert_eq!(limit(0), Duration::ZERO);
        assert_eq!(limit(1500), Duration::from_micros(1500));
    }
}
