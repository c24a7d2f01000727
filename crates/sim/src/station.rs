//! A FIFO queue with servers: processors and disks. It keeps accounts, so that Little's law can be
//! checked (wu 5.1.2).

use std::collections::VecDeque;

use crate::time::Nanos;

/// Waiting and served jobs. The caller determines service times.
#[derive(Debug)]
pub struct Station<J> {
    servers: usize,
    waiting: VecDeque<Arrived<J>>,
    load: Load,
}

/// A job at a station, with its time of arrival.
#[derive(Debug)]
pub struct Arrived<J> {
    pub at: Nanos,
    pub job: J,
}

/// Accounts of a station since the start of the run. Times are sums of nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Number of jobs in the station, and of those in service.
    pub number: usize,
    pub busy: usize,
    pub arrivals: u64,
    pub departures: u64,
    /// Integrals over time of the number of jobs in the station, and of those in service.
    pub area: u128,
    pub busy_area: u128,
    /// Total time in the station of the jobs that have left.
    pub sojourn: u128,
    /// Sum of the arrival times of the jobs in the station.
    arrived: u128,
    since: Nanos,
}

impl<J> Station<J> {
    pub fn new(servers: usize) -> Self {
        Self { servers, waiting: VecDeque::new(), load: Load::default() }
    }

    /// A job arrives; returned if its service begins at once.
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

    /// The service of a job that arrived at `at` ends. Returns the next job to serve.
    pub fn leave(&mut self, now: Nanos, at: Nanos) -> Option<Arrived<J>> {
        self.load.leave(now, at);
        let next = self.waiting.pop_front();
        self.load.busy -= usize::from(next.is_none());
        next
    }

    /// Removes all jobs, waiting or served.
    pub fn clear(&mut self, now: Nanos) {
        self.load.clear(now);
        self.waiting.clear();
    }

    pub fn servers(&self) -> usize {
        self.servers
    }

    /// True if jobs wait.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Number of jobs that wait or are served.
    pub fn number(&self) -> usize {
        self.load.number
    }

    /// Time since the last job left; 0 if the station is busy.
    pub fn idle(&self, now: Nanos) -> Nanos {
        if self.is_idle() { now - self.load.since } else { Nanos::ZERO }
    }

    pub fn is_idle(&self) -> bool {
        self.load.number == 0
    }

    /// Accounts up to `now`.
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

    /// Total time so far of the jobs in the station.
    fn present(&self, now: Nanos) -> u128 {
        self.number as u128 * u128::from(now.0) - self.arrived
    }

    /// Mean number of jobs in the station (L), arrivals per second (lambda), and mean seconds in
    /// the station (W).
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

/// The terms of Little's law.
#[derive(Clone, Copy, Debug)]
pub struct Little {
    pub number: f64,
    pub rate: f64,
    pub time: f64,
}

impl Little {
    /// True if L = lambda W, apart from rounding.
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
        // A job without account violates the law.
        let mut load = station.load(Nanos(90));
        load.sojourn -= 1;
        assert!(!load.little(Nanos(90)).holds());
    }
}
