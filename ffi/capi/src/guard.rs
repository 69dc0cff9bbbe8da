//! The border: no panic crosses it, and what went wrong is kept as a sentence for the thread.

use core::cell::RefCell;
use core::ffi::{CStr, c_char, c_int};
use std::any::Any;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi::rowmill_status;
use crate::error::Error;

thread_local! {
    /// What was wrong with the thread's last call that failed.
    static TEXT: RefCell<CString> = RefCell::default();
}

/// Runs the body of an exported function. Its error becomes the status that is returned, and its sentence the thread's text.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Error>) -> c_int {
    // What a panic leaves behind is not used again: a hub that a thread has panicked in refuses, and the tables of handles and
    // requests are changed in single steps.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        #[cfg(test)]
        planted::panic_if_planted();
        body()
    }));
    let error = match outcome {
        Ok(Ok(())) => return rowmill_status::ROWMILL_OK as c_int,
        Ok(Err(error)) => error,
        Err(panic) => panicked(&*panic),
    };
    keep(error.text);
    error.code
}

/// Makes a sentence the thread's text.
pub(crate) fn keep(text: String) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // A thread that ends has none any more.
    let _ = TEXT.try_with(|kept| *kept.borrow_mut() = text);
}

/// The thread's text. It moves with the next call that fails.
pub(crate) fn text() -> *const c_char {
    let none: &CStr = c"";
    TEXT.try_with(|kept| kept.borrow().as_ptr())
        .unwrap_or(none.as_ptr())
}

fn panicked(panic: &(dyn Any + Send)) -> Error {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error {
        code: rowmill_status::ROWMILL_INTERNAL as c_int,
        text: format!(
            "librowmill panicked: {}; close the client, and report this with what led to it",
            said.unwrap_or("it did not say why")
        ),
    }
}

/// A panic that tests plant in whatever this thread calls next.
#[cfg(test)]
pub(crate) mod planted {
    use core::cell::Cell;

    thread_local! {
        static PLANTED: Cell<bool> = const { Cell::new(false) };
    }

    pub(crate) fn plant() {
        PLANTED.set(true);
    }

    pub(super) fn panic_if_planted() {
        if PLANTED.replace(false) {
            panic!("planted");
        }
    }
}
