//! The simulated port passes the suite that every port has to pass, with and without delays.

use std::cell::RefCell;
use std::rc::Rc;

use rowmill_port::conformance::{Harness, Setup, Violation, Worker};
use rowmill_port::sim::{Bounds, Far, Faults, Link, Loss, SimClient, SimNet, SimServer};
use rowmill_port::{PortError, RegionId};
use rowmill_wire::Immediate;

/// How far the clock moves with each turn of the workers.
const STEP_NS: u64 = 500;

type Lanes = Rc<RefCell<Vec<(Worker, SimServer)>>>;

struct Sim<const DELAYED: bool, const FAR: bool> {
    net: SimNet,
    lanes: Lanes,
}

fn turn(net: &SimNet, lanes: &Lanes) {
    net.advance_to(net.now_ns() + STEP_NS);
    for (worker, port) in lanes.borrow_mut().iter_mut() {
        worker.turn(port);
    }
    net.take_log();
}

impl<const DELAYED: bool, const FAR: bool> Harness for Sim<DELAYED, FAR> {
    type Client = SimClient;

    fn start(setup: Setup) -> Sim<DELAYED, FAR> {
        let bounds = Bounds {
            lanes: setup.workers.len() as u16,
            connections: setup.max_connections.into(),
            credits: setup.credits,
            max_region: setup.max_region,
            far: FAR.then_some(Far {
                stage_bytes: 64 << 10,
                blocks: 2,
                fetches: 2,
                link: Link::default(),
            }),
        };
        let faults = match DELAYED {
            true => Faults {
                delay_ns: 100..=5_000,
                held_up_per_mille: 20,
                held_up_ns: 50_000,
                mistake: None,
            },
            false => Faults::NONE,
        };
        let net = SimNet::new(1, bounds, setup.service, faults);
        let lanes = setup.workers.into_iter().enumerate();
        let lanes: Lanes = Rc::new(RefCell::new(
            lanes.map(|(i, w)| (w, net.lane(i as u16))).collect(),
        ));
        let weak = Rc::downgrade(&lanes);
        net.set_world(move |net| {
            if let Some(lanes) = weak.upgrade() {
                turn(net, &lanes);
            }
        });
        Sim { net, lanes }
    }

    fn connect(&mut self, name: &str, credits: u16) -> Result<SimClient, PortError> {
        self.net.connect(name, credits)
    }

    fn run(&mut self) {
        turn(&self.net, &self.lanes);
    }

    fn stop_server(&mut self) {
        self.net.stop();
    }

    fn violate(&mut self, client: &mut SimClient, lane: u16, what: Violation) -> bool {
        let bits = match what {
            Violation::UnknownKind => 0xf000_0000,
            Violation::ServersKind => Immediate::Final { slot: 0, slice: 0 }.encode(),
            Violation::SlotNotGranted => Immediate::Request { slot: 64, len: 64 }.encode(),
            Violation::CancelNotGranted => Immediate::Cancel { slot: 64 }.encode(),
            Violation::EmptyFrame => Immediate::Request { slot: 0, len: 0 }.encode(),
            Violation::FrameTooLong => Immediate::Request { slot: 0, len: 8193 }.encode(),
            Violation::Overrun => {
                let bits = Immediate::Cancel { slot: 0 }.encode();
                while client.submit_bits(lane, bits).is_ok() && !client.is_cut() {}
                return true;
            }
            Violation::Backwards => return false,
        };
        client.submit_bits(lane, bits).is_ok()
    }

    fn lose(&mut self, client: &mut SimClient, region: RegionId) -> bool {
        self.net.lose(client.conn(), region, Loss::Now);
        true
    }
}

mod at_once {
    rowmill_port::conformance_tests!(super::Sim<false, false>);
}

mod delayed {
    rowmill_port::conformance_tests!(super::Sim<true, false>);
}

mod far {
    rowmill_port::conformance_tests!(super::Sim<true, true>);
}
