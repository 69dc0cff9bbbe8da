//! Posting, polling and taking back allocate nothing.

use rowmill_verbs::{Kind, Local, Operation, Piece, Signal};

use crate::pair::{Pair, device};

#[test]
fn the_data_path_allocates_nothing() {
    let Some(context) = device() else { return };
    let mut pair = Pair::new(&context);
    let remote = pair.server.shared.remote();
    let key = pair.client.key;
    let mut round = |number: u32| {
        let client = &mut pair.client;
        let mut block = client.slab.take().expect("a free block");
        block.as_mut_slice()[..4].copy_from_slice(&number.to_le_bytes());
        let mut batch = client.qp.batch();
        let local = Local {
            block,
            key,
            pieces: &[Piece::from(0..2), Piece::from(2..4)],
            note: number,
        };
        let posted = batch.post(Operation::Write(remote), local, Signal::No);
        assert!(posted.is_ok());
        let to = Operation::WriteImmediate(remote, number);
        let posted = batch.post_inline(to, &number.to_le_bytes(), Signal::Yes);
        assert!(posted.is_ok());
        batch.ring().expect("posted");
        let server = &mut pair.server;
        let mut got = None;
        while got.is_none() {
            for completion in server.completions.poll().expect("a poll") {
                assert_eq!(completion.id().kind(), Some(Kind::Receive));
                got = completion.immediate();
                assert_eq!(server.qp.retire(completion).expect("its own").count(), 0);
            }
        }
        assert_eq!(got, Some(number));
        server.qp.receive_empty(1).expect("a receive");
        let mut back = 0;
        while back == 0 {
            for completion in client.completions.poll().expect("a poll") {
                back += client.qp.retire(completion).expect("its own").count();
            }
        }
        assert_eq!(back, 1);
    };
    for number in 0..50 {
        round(number);
    }
    let info = allocation_counter::measure(|| {
        for number in 50..250 {
            round(number);
        }
    });
    assert_eq!(info.count_total, 0, "{info:?}");
}
