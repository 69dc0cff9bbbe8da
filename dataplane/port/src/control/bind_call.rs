//! A client's `Bind`, which is answered when every worker knows the schema.

use std::time::{Duration, Instant};

use rowmill_wire::control::Control as Question;
use rowmill_wire::{Refusal, Schema, Status};

use crate::{ConnId, PendingBind, Service};

/// How long workers get to take a schema in. A pass takes some hundred microseconds; this is for workers whose core is
/// taken away.
const BIND_WAIT: Duration = Duration::from_secs(2);

/// While somebody binds, how often a control thread looks whether the workers know the schema. These take schemas once a
/// pass, and the longest one takes about as long: events for 156 us and a micro-batch of 50 us.
pub(crate) const BIND_LOOK: Duration = Duration::from_micros(200);

/// An answer, or why there is none.
type Answer = Result<Question, (Refusal, String)>;

/// A `Bind` that is not answered. Dropping it abandons the schema.
pub(crate) struct BindCall {
    conn: ConnId,
    sequence: u32,
    pending: Box<dyn PendingBind>,
    until: Instant,
}

impl BindCall {
    /// Sends a schema to the workers.
    ///
    /// # Errors
    /// What [`Service::bind`] refuses.
    pub(crate) fn begin(
        service: &dyn Service,
        conn: ConnId,
        sequence: u32,
        schema: Schema,
        now: Instant,
    ) -> Result<BindCall, (Refusal, String)> {
        Ok(BindCall {
            conn,
            sequence,
            pending: service.bind(conn, schema)?,
            until: now + BIND_WAIT,
        })
    }

    /// Ends a call whose schema every worker knows, or whose time is over: gives its sequence number and its answer.
    pub(crate) fn finish(call: &mut Option<BindCall>, now: Instant) -> Option<(u32, Answer)> {
        let waiting = call.as_mut()?;
        let schema = waiting.pending.number();
        let answer = if waiting.pending.is_known() {
            Ok(Question::Bound { schema })
        } else if now >= waiting.until {
            let detail = format!("a worker did not take the schema in within {BIND_WAIT:?}");
            tracing::error!(conn = waiting.conn.0, "{detail}");
            Err((Refusal::whole(Status::Internal), detail))
        } else {
            return None;
        };
        call.take().map(|call| (call.sequence, answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::Answers;

    #[test]
    fn answered_when_known_refused_when_late_and_abandoned_when_dropped() {
        let answers = Answers::new(1);
        let start = Instant::now();
        let begin = |table| {
            let feature = ("f", table, rowmill_wire::Pooling::Sum, 4);
            let (schema, _) = Schema::side_by_side(8, [feature]);
            BindCall::begin(&answers, ConnId(0), 9, schema, start)
        };
        let mut at_once = begin("table-1").ok();
        let answer = BindCall::finish(&mut at_once, start);
        assert_eq!(answer, Some((9, Ok(Question::Bound { schema: 1 }))));
        assert!(at_once.is_none());
        let (refusal, _) = begin("missing").err().expect("refused");
        assert_eq!(refusal, Refusal::feature(Status::UnknownTable, 0));

        let mut late = begin(Answers::HELD).ok();
        let just_before = start + BIND_WAIT - Duration::from_nanos(1);
        assert_eq!(BindCall::finish(&mut late, just_before), None);
        assert_eq!(answers.held(), 1);
        let (sequence, answer) = BindCall::finish(&mut late, start + BIND_WAIT).expect("late");
        let (refusal, detail) = answer.expect_err("refused");
        assert_eq!((sequence, refusal.status), (9, Status::Internal));
        assert_eq!(detail, "a worker did not take the schema in within 2s");
        assert_eq!(answers.held(), 0, "it is abandoned");

        let mut known = begin(Answers::HELD).ok();
        answers.let_held_go();
        let answer = BindCall::finish(&mut known, start + BIND_WAIT);
        assert_eq!(answer, Some((9, Ok(Question::Bound { schema: 1 }))));
    }
}
