//! Control calls of a client that are the same over every port that has a control stream.

use rowmill_wire::Schema;
use rowmill_wire::control::{Control, TableEntry};

use crate::{PortError, RegionId};

/// Tables that a client takes from a dataplane at most: more than a model has by orders of magnitude, and few enough that a
/// dataplane that goes on and on does not fill the client's memory.
const TABLES_MAX: usize = 1 << 20;

/// Asks for all tables, page by page.
pub(crate) fn tables(
    mut ask: impl FnMut(&Control) -> Result<Control, PortError>,
) -> Result<Vec<TableEntry>, PortError> {
    let mut all = Vec::new();
    loop {
        let asked = all.len() as u32;
        match ask(&Control::ListTables { first: asked })? {
            Control::Tables {
                total,
                first,
                tables,
            } if first == asked && total as usize <= TABLES_MAX => {
                let is_last = tables.is_empty();
                all.extend(tables);
                if is_last || all.len() >= total as usize {
                    return Ok(all);
                }
            }
            other => return Err(unexpected(&other)),
        }
    }
}

/// The number that an answer gives to a schema.
pub(crate) fn bound(answer: &Control) -> Result<u32, PortError> {
    match *answer {
        Control::Bound { schema } => Ok(schema),
        _ => Err(unexpected(answer)),
    }
}

/// Whether a region was given up.
pub(crate) fn unregistered(
    outcome: Result<Control, PortError>,
    region: RegionId,
) -> Result<(), PortError> {
    match outcome? {
        Control::Unregistered { region: gone } if gone == region.0 => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// An answer that the question does not have.
pub(crate) fn unexpected(answer: &Control) -> PortError {
    PortError::Protocol(format!("an answer that was not asked for: {answer:?}"))
}

/// What a message says in answer to a question.
pub(crate) fn understand(bytes: &[u8], sequence: u32) -> Result<Control, PortError> {
    let (answered, answer) = Control::parse(bytes).map_err(|refusal| {
        PortError::Protocol(format!("an answer is not understood: {refusal}"))
    })?;
    match answer {
        _ if answered != sequence => Err(PortError::Protocol(format!(
            "the answer to question {answered} came for question {sequence}"
        ))),
        Control::Refused { refusal, detail } => Err(PortError::Refused { refusal, detail }),
        answer => Ok(answer),
    }
}

/// Questions whose answers nobody waits for, and what came of them.
///
/// A dataplane answers one question of a client at a time. So the next one is asked when the answer to the last has come, also
/// where nobody waits for that any more, and what it gave has been given back.
#[derive(Debug, Default)]
pub(crate) struct Late {
    /// The one that was asked.
    owed: Option<Owed>,
    /// Those that are to be asked: at most one for each region.
    unasked: Vec<Control>,
    /// Schemas whose numbers came late, each for the next call that binds an equal one. A dataplane can't be told to forget one.
    schemas: Vec<(Schema, u32)>,
}

#[derive(Debug)]
struct Owed {
    sequence: u32,
    gives: Gives,
}

/// What an answer gives.
#[derive(Debug)]
enum Gives {
    Nothing,
    Region,
    Schema(Schema),
}

impl Late {
    /// Whether an answer is still to come.
    pub(crate) fn is_owed(&self) -> bool {
        self.owed.is_some()
    }

    /// Whether there is anything to be done before the next question.
    pub(crate) fn is_open(&self) -> bool {
        self.is_owed() || !self.unasked.is_empty()
    }

    /// Nobody waits for the answer to this question any more, which was asked.
    pub(crate) fn give_up(&mut self, sequence: u32, question: &Control) {
        let gives = match question {
            Control::Bind(schema) => Gives::Schema(schema.clone()),
            Control::Register { .. } | Control::RegisterRemote { .. } => Gives::Region,
            _ => Gives::Nothing,
        };
        self.owed = Some(Owed { sequence, gives });
    }

    /// Nobody waits for the answer to this question any more, which was not asked yet. It will be, where it gives something back.
    pub(crate) fn give_up_unasked(&mut self, question: &Control) {
        if let Control::Unregister { .. } = question {
            self.unasked.push(question.clone());
        }
    }

    /// The question that is to be asked now, and to be given up then.
    pub(crate) fn next_question(&mut self) -> Option<Control> {
        match self.is_owed() {
            true => None,
            false => self.unasked.pop(),
        }
    }

    /// Takes the answer that was to come.
    ///
    /// # Errors
    /// [`PortError::Protocol`] where it is no answer to that question.
    pub(crate) fn heard(&mut self, bytes: &[u8]) -> Result<(), PortError> {
        let Some(Owed { sequence, gives }) = self.owed.take() else {
            let text = "a message that no question was asked for";
            return Err(PortError::Protocol(text.to_owned()));
        };
        let answer = match understand(bytes, sequence) {
            Err(PortError::Refused { .. }) => return Ok(()),
            answer => answer?,
        };
        match (gives, answer) {
            (Gives::Nothing, _) => (),
            (Gives::Region, Control::Registered { region }) => {
                self.unasked.push(Control::Unregister { region });
            }
            (Gives::Region, answer) => return Err(unexpected(&answer)),
            (Gives::Schema(schema), answer) => self.schemas.push((schema, bound(&answer)?)),
        }
        Ok(())
    }

    /// The number of such a schema that came late and that nobody has.
    pub(crate) fn claim(&mut self, schema: &Schema) -> Option<u32> {
        let at = self.schemas.iter().position(|(known, _)| known == schema)?;
        Some(self.schemas.swap_remove(at).1)
    }
}

#[cfg(test)]
mod tests {
    use rowmill_wire::{Pooling, Refusal, Status};

    use super::*;
    fn page(total: u32, first: u32, names: &[&str]) -> Control {
        let entry = |name: &&str| TableEntry {
            name: (*name).into(),
            rows: 1,
            dim: 4,
            format: 0,
            kind: 0,
        };
        Control::Tables {
            total,
            first,
            tables: names.iter().map(entry).collect(),
        }
    }

    #[test]
    fn pages_are_put_together_and_have_an_end() {
        let mut pages = [page(3, 0, &["a", "b"]), page(3, 2, &["c"])].into_iter();
        let all = tables(|_| Ok(pages.next().expect("two pages"))).expect("three tables");
        assert_eq!(all.len(), 3);
        let lied = tables(|_| Ok(page(u32::MAX, 0, &["a"])));
        assert!(matches!(lied, Err(PortError::Protocol(_))), "too many");
        let astray = tables(|_| Ok(page(3, 1, &["a"])));
        assert!(matches!(astray, Err(PortError::Protocol(_))));
        let short = tables(|_| Ok(page(3, 0, &[]))).expect("an empty page is the last");
        assert!(short.is_empty());
    }

    #[test]
    fn late_answers_are_told_from_others_and_give_back() {
        let mut late = Late::default();
        let register = Control::Register {
            bytes: 4096,
            rights: rowmill_wire::control::Rights::Write,
        };
        late.give_up(5, &register);
        assert!(late.is_owed());
        assert_eq!(late.next_question(), None, "one at a time");
        let answer = Control::Registered { region: 3 }.encode(5);
        late.heard(&answer).expect("it is the answer");
        assert!(!late.is_owed() && late.is_open());
        let back = late.next_question().expect("the region goes back");
        assert_eq!(back, Control::Unregister { region: 3 });
        late.give_up(6, &back);
        let answer = Control::Unregistered { region: 3 }.encode(6);
        late.heard(&answer).expect("it is the answer");
        assert!(!late.is_open());
        late.give_up_unasked(&register);
        assert!(!late.is_open(), "there is nothing to give back");
        late.give_up_unasked(&back);
        assert_eq!(late.next_question(), Some(back));
        late.give_up(7, &register);
        let refused = Control::Refused {
            refusal: Refusal::whole(Status::LimitReached),
            detail: String::new(),
        };
        late.heard(&refused.encode(7)).expect("a refusal");
        late.give_up(8, &register);
        let other = Control::Registered { region: 3 }.encode(7);
        assert!(matches!(late.heard(&other), Err(PortError::Protocol(_))));
        assert!(matches!(late.heard(&other), Err(PortError::Protocol(_))));
        assert!(!late.is_open());
    }

    #[test]
    fn a_schema_that_came_late_is_for_an_equal_one_once() {
        let schema = |table| Schema::side_by_side(8, [("f", table, Pooling::Sum, 4)]).0;
        let mut late = Late::default();
        late.give_up(1, &Control::Bind(schema("a")));
        let heard = late.heard(&Control::Bound { schema: 9 }.encode(1));
        heard.expect("it is the answer");
        assert!(!late.is_open());
        assert_eq!(late.claim(&schema("b")), None);
        assert_eq!(late.claim(&schema("a")), Some(9));
        assert_eq!(late.claim(&schema("a")), None, "it is somebody's now");
    }
}
