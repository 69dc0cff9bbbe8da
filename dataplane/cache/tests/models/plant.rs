//! Mistakes that a model has to find, so that it is known to find any.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// Stores publish nothing.
    RelaxedStore,
    /// Loads see nothing of what was published.
    RelaxedLoad,
    /// Fences do nothing.
    NoFence,
    /// Who changes the newest epoch publishes nothing, and sees nothing of what was published.
    RelaxedExchange,
    /// A worker that wakes only looks at the newest epoch.
    WakesByALoad,
    /// Writers think that there are no workers.
    WaitsForNobody,
    /// Bells are looked at, and then stored.
    RingsByAStore,
    /// A worker that was rung lies down.
    LiesDownByAStore,
}

std::thread_local! {
    // All threads of a model are on the thread of its test.
    static PLANTED: Cell<Option<Mistake>> = const { Cell::new(None) };
}

/// Whether this mistake is made now.
pub(crate) fn is(mistake: Mistake) -> bool {
    PLANTED.get() == Some(mistake)
}

/// Asserts that each of the mistakes makes the model fail.
pub(crate) fn assert_found(mistakes: &[Mistake], model: fn()) {
    assert_found_by(mistakes, || crate::check(model));
}

/// The same with a check of one's own.
pub(crate) fn assert_found_by(mistakes: &[Mistake], check: impl Fn()) {
    for &mistake in mistakes {
        PLANTED.set(Some(mistake));
        let outcome = catch_unwind(AssertUnwindSafe(&check));
        PLANTED.set(None);
        let found = outcome.expect_err(&format!("{mistake:?} was not found"));
        let text = found.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| found.downcast_ref::<&str>().copied());
        println!("{mistake:?}: {}", text.unwrap_or("a panic without a text"));
    }
}
