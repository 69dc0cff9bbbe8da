//! Bells, and the thread that rings them.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

/// Whether the bell's descriptor can be read within a time.
fn is_readable(bell: &Bell<StandIn>, within: Duration) -> bool {
    let mut fds = [PollFd::new(bell, PollFlags::IN)];
    let limit = Timespec::try_from(within).expect("some seconds");
    poll(&mut fds, Some(&limit)).expect("polled") > 0
}

/// Waits for so many tokens, as an event loop does.
pub(super) fn listen(bell: &Bell<StandIn>, count: usize) -> Vec<u64> {
    let mut tokens = Vec::new();
    while tokens.len() < count {
        assert!(is_readable(bell, LONG / 2), "a lost wake-up");
        bell.heard(&mut tokens);
    }
    tokens
}

fn submit(hub: &TestHub, schema: &BoundSchema, id: u32) -> Pending<StandIn> {
    let options = RequestOptions::default();
    let sent = hub.submit(schema, &ask(&[id]), Place::Pool, &options);
    sent.expect("sent")
}

#[test]
fn a_bell_is_rung_for_every_answer() {
    let hub = hub(4, sleepy(), HubOptions::default());
    let schema = bind(&hub);
    let bell = hub.bell().expect("a bell");
    let mut requests: Vec<_> = (0..4).map(|id| submit(&hub, &schema, id)).collect();
    for (request, token) in requests.iter().zip(10..) {
        request.ring(&bell, token).expect("in flight");
    }
    until_asleep(&hub);
    assert!(!is_readable(&bell, Duration::ZERO));
    with_port(&hub, |port| port.answer(2, Refusal::whole(Status::Ok)));
    assert_eq!(listen(&bell, 1), [12]);
    assert!(!is_readable(&bell, Duration::ZERO), "it was heard");
    let reply = requests[2].try_take().expect("open").expect("answered");
    assert_answers(&reply, &schema, &[2]);
    assert!(requests[0].try_take().expect("open").is_none());
    assert!(matches!(
        requests[2].try_take(),
        Err(ClientError::UnknownTicket)
    ));
    assert!(matches!(
        requests[2].ring(&bell, 0),
        Err(ClientError::UnknownTicket)
    ));
    with_port(&hub, |port| port.answer_all(Status::Ok));
    let mut tokens = listen(&bell, 3);
    tokens.sort_unstable();
    assert_eq!(tokens, [10, 11, 13]);
    // Whoever rings late is told at once.
    requests[0].ring(&bell, 20).expect("answered");
    assert!(is_readable(&bell, Duration::ZERO));
    assert_eq!(listen(&bell, 1), [20]);
}
