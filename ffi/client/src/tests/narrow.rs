//! Ids of 64 bits go to the source region as 32-bit ones where all of them fit.

use rowmill_wire::{Element, Status};

use super::*;

/// How the ids of a request, too many for a frame, come to the dataplane; they are what was sent.
fn element(s: &mut TestSession, schema: &BoundSchema, region: &Region, ids: &[u64]) -> Element {
    let mut batch = Batch::new(1).expect("a bag");
    let lengths = [ids.len() as u32];
    for _ in 0..2 {
        batch
            .push(Division::Lengths(&lengths), ids)
            .expect("adds up");
    }
    let target = s.target(region, schema.target_bytes(1)).expect("target");
    let options = RequestOptions::default();
    let ticket = s.submit(schema, &batch, target, &options).expect("sent");
    let arrived = &s.port.arrived[0];
    assert!(!arrived.inline);
    assert!(arrived.bags.iter().all(|feature| feature[0].0 == ids));
    let element = arrived.header.ids.element;
    s.port.answer_all(Status::Ok);
    let answer = s.wait(ticket, Wait::Poll).expect("answered");
    s.release(answer.target);
    element
}

#[test]
fn ids_are_sent_in_32_bits_where_all_of_them_are_rows_of_a_dense_table() {
    let mut s = session(1, 2, 1);
    let schema = bound(&mut s, false);
    let region = s.region(1 << 16).expect("region");
    let most = u64::from(u32::MAX >> 1);
    let ids: Vec<u64> = (0..1999).chain([most]).collect();
    assert_eq!(element(&mut s, &schema, &region, &ids), Element::Bits32);
    for unfit in [most + 1, u64::from(u32::MAX) + 1, u64::MAX] {
        for at in [0, 1000, 1999] {
            let mut s = session(1, 2, 1);
            let schema = bound(&mut s, false);
            let region = s.region(1 << 16).expect("region");
            let mut ids = ids.clone();
            ids[at] = unfit;
            assert_eq!(element(&mut s, &schema, &region, &ids), Element::Bits64);
        }
    }
}

#[test]
fn after_ids_that_need_64_bits_others_are_tried_again_later() {
    let mut s = session(1, 2, 1);
    let schema = bound(&mut s, false);
    let region = s.region(1 << 16).expect("region");
    let small: Vec<u64> = (0..2000).collect();
    let keys: Vec<u64> = (0..2000).map(|i| i << 40).collect();
    assert_eq!(element(&mut s, &schema, &region, &keys), Element::Bits64);
    let mut elements = (0..64).map(|_| element(&mut s, &schema, &region, &small));
    assert_eq!(elements.position(|e| e == Element::Bits32), Some(63));
}
