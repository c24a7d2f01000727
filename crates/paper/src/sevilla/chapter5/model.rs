//! A model of sequencers in virtual time: clients that each wait for one number at a time, and
//! servers that work on one request at a time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Costs in microseconds. Together `receive` and `find` give the thesis' servers, of which one with
/// two sequencers serves less than 1,000 requests a second of each (Fig. 5.5); that either half is
/// as expensive follows from twice the throughput when they are on two servers (Fig. 5.3 b).
#[derive(Clone, Copy, Debug)]
pub(super) struct SequencerCosts {
    /// Receives a client's request, and answers it or passes it on.
    pub receive: u64,
    /// Finds the tail.
    pub find: u64,
    /// Work of the first server for each request that another server answers directly, and for each
    /// of its own meanwhile: the metadata servers' cache coherence.
    pub coherence: u64,
    /// A message's way.
    pub message: u64,
}

pub(super) const THESIS: SequencerCosts =
    SequencerCosts { receive: 260, find: 265, coherence: 300, message: 50 };

/// The server that a client sends its requests to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestRoute {
    /// The server that has the sequencer.
    Client,
    /// The first server, which passes requests on.
    Proxy,
}

/// A request on its way: when it arrives, at which server, of which client.
type RequestArrival = Reverse<(u64, usize, usize, bool)>;

/// A run of the model.
pub(super) struct SequencerModel {
    costs: SequencerCosts,
    route: RequestRoute,
    clients: usize,
    /// Server of each sequencer.
    pub placement: Vec<usize>,
    /// Time until which a server has work.
    free: Vec<u64>,
    arrivals: BinaryHeap<RequestArrival>,
    now: u64,
    /// Numbers handed out by each sequencer, and requests received by each server, since the last
    /// reset.
    pub served: Vec<u64>,
    pub received: Vec<u64>,
}

impl SequencerModel {
    /// All sequencers begin at the first server. `clients`: number of clients of each sequencer.
    pub fn new(
        costs: SequencerCosts,
        route: RequestRoute,
        servers: usize,
        sequencers: usize,
        clients: usize,
    ) -> Self {
        let placement = vec![0; sequencers];
        let (served, received) = (vec![0; sequencers], vec![0; servers]);
        let (free, arrivals) = (vec![0; servers], BinaryHeap::new());
        let mut model = Self { costs, route, clients, placement, free, arrivals, now: 0, served, received };
        (0..sequencers * clients).for_each(|client| model.send(client, client as u64));
        model
    }

    fn send(&mut self, client: usize, at: u64) {
        let server = match self.route {
            RequestRoute::Client => self.placement[client / self.clients],
            RequestRoute::Proxy => 0,
        };
        self.arrivals.push(Reverse((at + self.costs.message, server, client, false)));
    }

    /// Runs for some microseconds.
    pub fn run(&mut self, micros: u64) {
        let end = self.now + micros;
        while let Some(Reverse((at, server, client, is_passed_on))) = self.arrivals.peek().copied() {
            if at >= end {
                break;
            }
            self.arrivals.pop();
            self.arrive(at, server, client, is_passed_on);
        }
        self.now = end;
    }

    fn arrive(&mut self, at: u64, server: usize, client: usize, is_passed_on: bool) {
        let SequencerCosts { receive, find, coherence, message } = self.costs;
        let sequencer = client / self.clients;
        let holder = self.placement[sequencer];
        let is_shared = self.placement.iter().any(|it| *it != 0) && self.route == RequestRoute::Client;
        let mut work = if is_passed_on { find } else { receive };
        if !is_passed_on {
            self.received[server] += 1;
            work += if holder == server { find } else { 0 };
        }
        if is_shared && server == 0 {
            work += coherence;
        } else if is_shared {
            self.free[0] = self.free[0].max(at) + coherence;
        }
        self.free[server] = self.free[server].max(at) + work;
        let done = self.free[server];
        if is_passed_on || holder == server {
            self.served[sequencer] += 1;
            self.send(client, done + message);
        } else {
            self.arrivals.push(Reverse((done + message, holder, client, true)));
        }
    }

    /// Numbers a second of all sequencers, after a second of warming up.
    pub fn throughput(mut self, seconds: u64) -> f64 {
        self.run(1_000_000);
        self.served.fill(0);
        self.run(seconds * 1_000_000);
        self.served.iter().sum::<u64>() as f64 / seconds as f64
    }
}
