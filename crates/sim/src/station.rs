//! A queue before servers that serve in the order of arrival: processors and disks. Keeps account of itself, so that Little's law
//! can be checked (wu 5.1.2).

use std::collections::VecDeque;

use crate::time::Nanos;

/// What waits and what is served. Who begins to be served, and how long that takes, is the caller's to know.
#[derive(Debug)]
pub struct Station<J> {
    servers: usize,
    waiting: VecDeque<Arrived<J>>,
    load: Load,
}

/// Somebody at a station, and since when.
#[derive(Debug)]
pub struct Arrived<J> {
    pub at: Nanos,
    pub job: J,
}

/// How a station has been used since the run began. Times are sums of nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// In the station now, and of these in service.
    pub number: usize,
    pub busy: usize,
    pub arrivals: u64,
    pub departures: u64,
    /// Integrals over time: of the number in the station, and of the number in service.
    pub area: u128,
    pub busy_area: u128,
    /// How long those who have left were in it.
    pub sojourn: u128,
    /// Of those in it: the sum of their arrivals.
    arrived: u128,
    since: Nanos,
}

impl<J> Station<J> {
    pub fn new(servers: usize) -> Self {
        Self { servers, waiting: VecDeque::new(), load: Load::default() }
    }

    /// Somebody arrives; given back if its service begins at once.
    pub fn arrive(&mut self, now: Nanos, job: J) -> Option<Arrived<J>> {
        self.load.advance(now);
        self.load.arrivals += 1;
        self.load.arrived += u128::from(now.0);
        self.load.number += 1;
        let arrived = Arrived { at: now, job };
        if self.load.busy < self.servers {
            self.load.busy += 1;
            Some(arrived)
        } else {
            self.waiting.push_back(arrived);
            None
        }
    }

    /// The service of one that has arrived at `at` ends. Whose service begins now, if anybody's.
    pub fn leave(&mut self, now: Nanos, at: Nanos) -> Option<Arrived<J>> {
        self.load.leave(now, at);
        let next = self.waiting.pop_front();
        self.load.busy -= usize::from(next.is_none());
        next
    }

    /// All go, served or not.
    pub fn clear(&mut self, now: Nanos) {
        self.load.clear(now);
        self.waiting.clear();
    }

    pub fn servers(&self) -> usize {
        self.servers
    }

    /// Whether any wait.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// How many wait or are served.
    pub fn number(&self) -> usize {
        self.load.number
    }

    /// For how long it has had nothing to do.
    pub fn idle(&self, now: Nanos) -> Nanos {
        if self.is_idle() { now - self.load.since } else { Nanos::ZERO }
    }

    pub fn is_idle(&self) -> bool {
        self.load.number == 0
    }

    /// How it has been used until now.
    pub fn load(&self, now: Nanos) -> Load {
        let mut load = self.load;
        load.advance(now);
        load
    }
}

impl Load {
    fn advance(&mut self, now: Nanos) {
        let passed = u128::from((now - self.since).0);
        self.area += passed * self.number as u128;
        self.busy_area += passed * self.busy as u128;
        self.since = now;
    }

    fn leave(&mut self, now: Nanos, at: Nanos) {
        self.advance(now);
        self.departures += 1;
        self.number -= 1;
        self.arrived -= u128::from(at.0);
        self.sojourn += u128::from((now - at).0);
    }

    fn clear(&mut self, now: Nanos) {
        self.advance(now);
        self.sojourn += self.present(now);
        self.departures += self.number as u64;
        (self.number, self.busy, self.arrived) = (0, 0, 0);
    }

    /// For how long those in it have been there.
    fn present(&self, now: Nanos) -> u128 {
        self.number as u128 * u128::from(now.0) - self.arrived
    }

    /// Mean number in the station since the run began (L), how many came per second (lambda), and how many seconds each was in it (W).
    pub fn little(&self, now: Nanos) -> Little {
        let seconds = now.as_secs_f64().max(f64::MIN_POSITIVE);
        let arrivals = self.arrivals.max(1) as f64;
        Little {
            number: self.area as f64 / 1e9 / seconds,
            rate: self.arrivals as f64 / seconds,
            time: (self.sojourn + self.present(now)) as f64 / 1e9 / arrivals,
        }
    }
}

/// The three numbers of Little's law.
#[derive(Clone, Copy, Debug)]
pub struct Little {
    pub number: f64,
    pub rate: f64,
    pub time: f64,
}

impl Little {
    /// L = lambda W, but for what floating point does to it.
    pub fn holds(&self) -> bool {
        (self.number - self.rate * self.time).abs() <= 1e-6 * self.number.max(1e-6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_come_first_served() {
        let mut station = Station::new(2);
        let begins = |arrived: Option<Arrived<char>>| arrived.map(|arrived| arrived.job);
        assert_eq!(begins(station.arrive(Nanos(0), 'a')), Some('a'));
        assert_eq!(begins(station.arrive(Nanos(1), 'b')), Some('b'));
        assert_eq!(begins(station.arrive(Nanos(2), 'c')), None);
        assert_eq!(begins(station.arrive(Nanos(2), 'd')), None);
        assert_eq!(station.number(), 4);
        assert_eq!(begins(station.leave(Nanos(5), Nanos(0))), Some('c'));
        assert_eq!(begins(station.leave(Nanos(6), Nanos(1))), Some('d'));
        assert_eq!(begins(station.leave(Nanos(7), Nanos(2))), None);
        assert!(!station.is_idle());
        station.leave(Nanos(10), Nanos(2));
        assert!(station.is_idle());
        let load = station.load(Nanos(20));
        assert_eq!((load.arrivals, load.departures, load.area), (4, 4, 5 + 5 + 5 + 8));
        assert_eq!((load.sojourn, load.busy_area), (23, 5 + 5 + 2 + 4));
        assert!(load.little(Nanos(20)).holds());
    }

    #[test]
    fn the_law_holds_while_there_are_some_and_when_all_are_lost() {
        let mut station = Station::new(1);
        station.arrive(Nanos(10), ());
        station.arrive(Nanos(30), ());
        assert!(station.load(Nanos(35)).little(Nanos(35)).holds());
        station.clear(Nanos(50));
        assert!(station.is_idle());
        assert!(station.load(Nanos(90)).little(Nanos(90)).holds());
        // Somebody who is not accounted for breaks it.
        let mut load = station.load(Nanos(90));
        load.sojourn -= 1;
        assert!(!load.little(Nanos(90)).holds());
    }
}
