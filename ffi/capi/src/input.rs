//! What a caller in C hands over: pointers that may be NULL, structs that may be older or newer, texts that may be anything.
//!
//! A struct begins with its size as the caller was compiled with. One that is shorter than ours has zeros for the fields that it
//! lacks; one that is longer comes from a newer header, and is taken where the fields that we don't know are zero.

use core::ffi::{CStr, c_char};
use core::mem::{MaybeUninit, size_of};
use core::ptr;

use crate::abi::*;
use crate::error::Error;

/// A struct of the header that begins with its size.
///
/// # Safety
/// It is `repr(C)`, its first field is the size as an u32, and all of its bits may be zero.
pub(crate) unsafe trait Sized32: Copy {
    /// Its name in the header.
    const NAME: &'static str;
    /// Its size in the first version of the header: what every caller has at least.
    const FIRST: usize;
}

macro_rules! sized {
    ($($name:ident: $first:literal),* $(,)?) => {
        $(
            // SAFETY: all of them are `repr(C)`, begin with `size: u32`, and are made of integers and pointers.
            unsafe impl Sized32 for $name {
                const NAME: &'static str = stringify!($name);
                const FIRST: usize = $first;
            }

            const _: () = assert!(core::mem::offset_of!($name, size) == 0);
        )*

        /// Each with its size now and at first.
        #[cfg(test)]
        pub(crate) const SIZES: &[(&str, usize, usize)] = &[$((stringify!($name), size_of::<$name>(), $first),)*];
    };
}

sized! {
    rowmill_options: 40,
    rowmill_server: 168,
    rowmill_table: 160,
    rowmill_feature: 48,
    rowmill_layout: 32,
    rowmill_jagged: 64,
    rowmill_batch: 40,
    rowmill_target: 24,
    rowmill_request: 24,
    rowmill_answer: 40,
    rowmill_region_options: 8,
    rowmill_region_info: 32,
    rowmill_gpu_options: 40,
}

/// No struct will ever be larger: what says so has not set its size.
const MOST: usize = 4096;

/// The size that a struct of the caller's says it has.
///
/// # Safety
/// `from` is NULL or points to four readable bytes.
unsafe fn size_of_theirs<T: Sized32>(from: *const T, what: &str) -> Result<usize, Error> {
    if from.is_null() {
        return Err(Error::invalid(format!(
            "{what} is NULL; give a {}",
            T::NAME
        )));
    }
    // SAFETY: there are four readable bytes, as the caller says.
    let size = unsafe { from.cast::<u32>().read_unaligned() } as usize;
    if size < T::FIRST || size > MOST {
        return Err(Error::invalid(format!(
            "{what}: its size is {size}; set it to sizeof({}) before the call, and all fields that are not used to 0",
            T::NAME
        )));
    }
    Ok(size)
}

/// Copies a struct of the caller's.
///
/// # Safety
/// `from` is NULL, or points to a struct of the size that its first field says.
pub(crate) unsafe fn read<T: Sized32>(from: *const T, what: &str) -> Result<T, Error> {
    // SAFETY: as this function's.
    let theirs = unsafe { size_of_theirs(from, what) }?;
    // SAFETY: `from` has `theirs` bytes, as the caller says.
    unsafe { copy(from, theirs, what) }
}

/// Copies `theirs` bytes of a struct.
///
/// # Safety
/// `from` points to `theirs` readable bytes.
unsafe fn copy<T: Sized32>(from: *const T, theirs: usize, what: &str) -> Result<T, Error> {
    let ours = size_of::<T>();
    for at in ours..theirs {
        // SAFETY: `at` is below `theirs`.
        if unsafe { from.cast::<u8>().add(at).read() } != 0 {
            return Err(Error::invalid(format!(
                "{what}: it has a field that this librowmill does not know (byte {at} of a {}); use the librowmill that \
                 belongs to the header, or leave the field 0",
                T::NAME
            )));
        }
    }
    let mut copied = MaybeUninit::<T>::zeroed();
    // SAFETY: both have as many bytes, and `copied` is ours. All zeros are a value of T, and so are the caller's bytes: T is
    // made of integers and pointers.
    unsafe {
        ptr::copy_nonoverlapping(
            from.cast::<u8>(),
            copied.as_mut_ptr().cast::<u8>(),
            theirs.min(ours),
        );
        Ok(copied.assume_init())
    }
}

/// Copies an array of structs, which all have the size of the first one.
///
/// # Safety
/// `from` is NULL or points to `count` structs, each of the size that the first one's first field says.
pub(crate) unsafe fn read_all<T: Sized32>(
    from: *const T,
    count: usize,
    what: &str,
) -> Result<Vec<T>, Error> {
    if count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: as this function's; there is at least one.
    let stride = unsafe { size_of_theirs(from, what) }?;
    let mut all = Vec::with_capacity(count);
    for at in 0..count {
        // SAFETY: there are `count` of them, `stride` bytes apart.
        let (one, size) = unsafe {
            let one = from.byte_add(at * stride);
            (one, one.cast::<u32>().read_unaligned() as usize)
        };
        if size != stride {
            return Err(Error::invalid(format!(
                "{what}[{at}]: its size is {size}, but that of {what}[0] is {stride}; set the size of each to sizeof({})",
                T::NAME
            )));
        }
        // SAFETY: it has `stride` bytes.
        all.push(unsafe { copy(one, stride, &format!("{what}[{at}]")) }?);
    }
    Ok(all)
}

/// A struct of the caller's that is to be filled: as much of it as the caller has.
pub(crate) struct Out<T> {
    to: *mut T,
    theirs: usize,
}

impl<T: Sized32> Out<T> {
    /// Looks at its size.
    ///
    /// # Safety
    /// `to` is NULL, or points to writable structs of the size that its first field says, as many as it is filled at.
    pub(crate) unsafe fn new(to: *mut T, what: &str) -> Result<Out<T>, Error> {
        // SAFETY: as this function's.
        let theirs = unsafe { size_of_theirs(to, what) }?;
        Ok(Out { to, theirs })
    }

    /// Fills the one of that number; `value` has any size.
    pub(crate) fn fill(&self, at: usize, value: &T) {
        let known = self.theirs.min(size_of::<T>());
        // SAFETY: the caller's struct of this number has `theirs` writable bytes. What a newer header has beside ours is 0.
        unsafe {
            let to = self.to.byte_add(at * self.theirs).cast::<u8>();
            ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), to, known);
            to.add(known).write_bytes(0, self.theirs - known);
            to.cast::<u32>().write_unaligned(self.theirs as u32);
        }
    }
}

/// A place for a single value of the caller's.
///
/// # Safety
/// `to` is NULL or points to a writable, aligned T.
pub(crate) unsafe fn place<'a, T>(to: *mut T, what: &str) -> Result<&'a mut MaybeUninit<T>, Error> {
    // SAFETY: it is writable and aligned, as the caller says; a MaybeUninit needs no more.
    unsafe { to.cast::<MaybeUninit<T>>().as_mut() }
        .ok_or_else(|| Error::invalid(format!("{what} is NULL; give a place for it")))
}

/// A text of the caller's.
///
/// # Safety
/// `from` is NULL, or points to bytes with a 0 among or behind them, which stay as they are for `'a`.
pub(crate) unsafe fn text<'a>(from: *const c_char, what: &str) -> Result<&'a str, Error> {
    if from.is_null() {
        return Err(Error::invalid(format!("{what} is NULL; give a text")));
    }
    // SAFETY: it ends with a 0, as the caller says.
    let text = unsafe { CStr::from_ptr(from) }.to_str();
    text.map_err(|error| {
        let at = error.valid_up_to();
        Error::invalid(format!(
            "{what} is not in UTF-8 from byte {at} on; encode it so"
        ))
    })
}

/// A name as an array of the header's, cut between two letters where it is longer.
pub(crate) fn name(text: &str) -> [c_char; ROWMILL_NAME_BYTES] {
    let mut bytes = [0; ROWMILL_NAME_BYTES];
    let mut end = text.len().min(ROWMILL_NAME_BYTES - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    for (to, from) in bytes.iter_mut().zip(&text.as_bytes()[..end]) {
        *to = *from as c_char;
    }
    bytes
}

/// Refuses what is to be 0 until it means something.
pub(crate) fn unused(value: u32, what: &str) -> Result<(), Error> {
    match value {
        0 => Ok(()),
        other => Err(Error::invalid(format!(
            "{what} is {other}; it is not used yet and has to be 0"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> rowmill_request {
        rowmill_request {
            size: 24,
            flags: 0,
            generation: 7,
            deadline_us: 9,
            wait_us: 0,
        }
    }

    /// A request as a header with 8 more bytes has it.
    #[repr(C)]
    struct Newer(rowmill_request, u64);

    fn newer(more: u64) -> Newer {
        let mut one = Newer(request(), more);
        one.0.size = 40;
        one
    }

    fn read_newer(one: &Newer) -> Result<rowmill_request, Error> {
        // SAFETY: it has as many bytes as it says.
        unsafe { read(ptr::from_ref(one).cast(), "request") }
    }

    #[test]
    fn structs_of_other_versions_are_taken_where_they_can_be() {
        let same = read_newer(&newer(0)).expect("the new field is not used");
        assert_eq!((same.generation, same.deadline_us), (7, 9));
        let error = read_newer(&newer(1)).err().expect("unknown");
        assert!(error.text.contains("byte 32"), "{}", error.text);
        for size in [0, 23, 5000] {
            let mut one = request();
            one.size = size;
            // SAFETY: it is refused before more than the size is read.
            let error = unsafe { read(&raw const one, "request") }.err();
            let error = error.expect("no size");
            assert!(
                error.text.contains("sizeof(rowmill_request)"),
                "{}",
                error.text
            );
        }
    }

    #[test]
    fn what_is_filled_is_as_long_as_the_caller_s() {
        let mut theirs = [newer(5), newer(6)];
        theirs[1].0.size = 0;
        // SAFETY: there are two of them, of the size that the first one says.
        let out = unsafe { Out::new(theirs.as_mut_ptr().cast::<rowmill_request>(), "out") };
        let out = out.expect("a size");
        out.fill(0, &request());
        out.fill(1, &request());
        for one in &theirs {
            assert_eq!((one.0.size, one.0.generation, one.1), (40, 7, 0));
        }
    }

    #[test]
    fn sizes_are_those_of_the_header_and_names_fit() {
        for &(name, now, first) in SIZES {
            assert!(now >= first, "{name} has become shorter");
            assert!(now.is_multiple_of(8), "{name} has a gap at its end");
        }
        let long = "ä".repeat(100);
        let cut = name(&long);
        let end = cut.iter().position(|&byte| byte == 0);
        assert_eq!(end, Some(134), "cut between two letters");
    }
}
