//! Which policy is obeyed where several are offered: pure, with the time passed in.
//!
//! A dataplane follows one control plane as long as that answers. Another one, which an address may lead to by mistake, is refused until
//! the one before has been silent for [`SILENCE`], so that two of them don't pull it to and fro. Nor is a connection to another one kept.

use core::time::Duration;

use rowmill_link::Order;

/// How long the control plane that is followed is silent until another one is: somewhat more than a policy is
/// [waited for](rowmill_link::HOLD).
pub const SILENCE: Duration = Duration::from_secs(30);

/// The control plane that is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// Who it is.
    pub control: String,
    /// Its last policy.
    pub order: Order,
    /// When it answered last.
    heard: Duration,
    /// The connection to it: whatever is answered there comes from it.
    connection: u64,
}

/// What becomes of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer {
    /// It is obeyed from now on.
    Taken,
    /// It is the one that is obeyed already.
    Known,
    /// It is not obeyed, and a sentence that says why.
    Refused(String),
}

/// See the module's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Follower {
    followed: Option<Followed>,
    /// Who was asked for a policy last, if that is known.
    asked: Option<String>,
}

impl Follower {
    /// Who is followed.
    pub fn followed(&self) -> Option<&Followed> {
        self.followed.as_ref()
    }

    /// What a policy has to be newer than to be told on a connection. Who is at the other end of a new one is not known: it is asked for
    /// whatever it has.
    pub fn after(&self, connection: u64) -> Order {
        match &self.followed {
            Some(followed) if followed.connection == connection => followed.order,
            _ => Order::default(),
        }
    }

    /// There was no policy on a connection, from `control` where it said who it is.
    ///
    /// # Errors
    /// Where it is not who is followed, a sentence that says so: another connection may lead to that one.
    pub fn answered(
        &mut self,
        control: Option<&str>,
        connection: u64,
        now: Duration,
    ) -> Result<(), String> {
        self.asked = control.map(str::to_owned);
        let Some(followed) = &mut self.followed else {
            return Ok(());
        };
        match control {
            Some(control) if control != followed.control => {
                return Err(format!(
                    "control plane {control} answers, without a policy for this dataplane, and {} is followed: two of them answer at one \
                     address; stop one",
                    followed.control
                ));
            }
            None if connection != followed.connection => {}
            _ => followed.heard = now,
        }
        Ok(())
    }

    /// Whom else all should be told that was told to `control`: the one that is followed, or before one is, the one that policies are
    /// asked for.
    pub fn wants(&self, control: &str) -> Option<&str> {
        let followed = self.followed.as_ref().map(|followed| &followed.control);
        let wanted = followed.or(self.asked.as_ref())?;
        (wanted != control).then_some(wanted)
    }

    /// There was one.
    pub fn offered(
        &mut self,
        (control, order): (&str, Order),
        connection: u64,
        now: Duration,
    ) -> Offer {
        self.asked = Some(control.into());
        let is_taken = match &self.followed {
            None => true,
            Some(followed) if followed.control == control => order > followed.order,
            Some(followed) => now.saturating_sub(followed.heard) >= SILENCE,
        };
        if is_taken {
            self.followed = Some(Followed {
                control: control.into(),
                order,
                heard: now,
                connection,
            });
            return Offer::Taken;
        }
        let followed = self.followed.as_mut().expect("or it is taken");
        if followed.control != control {
            return Offer::Refused(format!(
                "control plane {control} offers policy {order}, and {}, which is followed with policy {}, was there until {} s ago: two of \
                 them answer at one address; stop one, or wait until the other one has been silent for {} s",
                followed.control,
                followed.order,
                now.saturating_sub(followed.heard).as_secs(),
                SILENCE.as_secs()
            ));
        }
        (followed.heard, followed.connection) = (now, connection);
        if order == followed.order {
            return Offer::Known;
        }
        Offer::Refused(format!(
            "control plane {control} offers policy {order}, which is older than its policy {} that is followed, as where its state was put \
             back; to follow it restart rowmilld",
            followed.order
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(epoch: u64, version: u64) -> Order {
        Order { epoch, version }
    }

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn one_that_is_newer_is_taken() {
        let mut follower = Follower::default();
        assert_eq!(follower.after(1), order(0, 0));
        assert_eq!(follower.offered(("a", order(1, 3)), 1, s(0)), Offer::Taken);
        assert_eq!(
            (follower.after(1), follower.after(2)),
            (order(1, 3), order(0, 0))
        );
        assert_eq!(follower.offered(("a", order(1, 3)), 2, s(1)), Offer::Known);
        assert_eq!(follower.after(2), order(1, 3));
        let older = follower.offered(("a", order(1, 2)), 2, s(2));
        assert!(
            matches!(&older, Offer::Refused(why) if why.contains("restart rowmilld")),
            "{older:?}"
        );
        assert_eq!(follower.offered(("a", order(2, 1)), 2, s(3)), Offer::Taken);
    }

    #[test]
    fn another_one_waits_until_the_first_is_silent() {
        let mut follower = Follower::default();
        follower.offered(("a", order(1, 3)), 1, s(0));
        // However high it counts.
        let other = follower.offered(("b", order(9, 9)), 2, s(10));
        assert!(
            matches!(&other, Offer::Refused(why) if why.contains("control plane b offers policy 9.9, and a,")
                && why.contains("until 10 s ago")),
            "{other:?}"
        );
        assert_eq!(follower.after(2), order(0, 0), "it is another's connection");
        assert_eq!(follower.answered(None, 2, s(20)), Ok(()));
        assert_eq!(follower.answered(None, 1, s(25)), Ok(()));
        let other = follower.offered(("b", order(9, 9)), 2, s(54));
        assert!(matches!(other, Offer::Refused(_)));
        assert_eq!(follower.offered(("b", order(1, 1)), 2, s(55)), Offer::Taken);
        assert_eq!(
            follower.followed().map(|followed| &*followed.control),
            Some("b")
        );
        let first = follower.offered(("a", order(7, 1)), 3, s(60));
        assert!(matches!(first, Offer::Refused(_)));
    }

    #[test]
    fn connections_to_another_one_are_not_kept() {
        let mut follower = Follower::default();
        assert_eq!(follower.wants("a"), None);
        // Before one is followed, reports go where policies are asked for.
        assert_eq!(follower.answered(Some("a"), 1, s(0)), Ok(()));
        assert_eq!(
            (follower.wants("a"), follower.wants("b")),
            (None, Some("a"))
        );
        follower.offered(("b", order(1, 1)), 2, s(1));
        assert_eq!(
            (follower.wants("a"), follower.wants("b")),
            (Some("b"), None)
        );
        let why = follower.answered(Some("a"), 1, s(2)).unwrap_err();
        assert!(
            why.contains("a answers") && why.contains("b is followed"),
            "{why}"
        );
        assert_eq!(follower.wants("b"), None, "it is followed still");
        // That one is heard by whatever connection.
        assert_eq!(follower.answered(Some("b"), 3, s(20)), Ok(()));
        let other = follower.offered(("a", order(9, 9)), 1, s(49));
        assert!(matches!(other, Offer::Refused(_)));
        assert_eq!(follower.offered(("a", order(1, 1)), 1, s(50)), Offer::Taken);
    }
}
