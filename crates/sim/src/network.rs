//! Model of the network. Each node has a full-duplex line to a single switch, which carries one
//! message at a time in each direction; the switch itself is never the bottleneck.

use rand::Rng;
use serde::Deserialize;

use crate::dist::Distribution;
use crate::quantity::{Bytes, Rate};
use crate::random::Random;
use crate::time::Nanos;

/// Named networks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkPreset {
    /// Gigabit Ethernet, as in wu 4.3.1.
    #[default]
    Gigabit,
    /// Myri-10G, as in wu 4.3.1: 1.2 GB/s.
    Myri10g,
    /// A single machine.
    Loopback,
    /// All messages take no time.
    Free,
}

/// The table `[network]`: a preset and overrides.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkSettings {
    pub preset: NetworkPreset,
    /// One-way latency, excluding the transfer.
    pub latency: Option<Distribution>,
    /// Bandwidth of each node's line in each direction. `None`: transfers take no time.
    pub bandwidth: Option<Rate>,
    /// Longest payload in bytes that is sent without an announcement (carns III.D), unless the
    /// message requests one.
    pub eager: Option<Bytes>,
    /// Fraction of messages that are lost and retransmitted, 0 to 1. Later messages of the
    /// connection wait for them.
    pub loss: f64,
    /// Time until a lost message is retransmitted.
    pub retransmit: Option<Nanos>,
    /// Time until a node detects that another does not answer, since it has no power or is
    /// partitioned off.
    pub timeout: Option<Nanos>,
}

/// Bytes of Ethernet, IP and TCP headers per message.
const HEADERS: usize = 66;
/// Default of `[network] eager`, as on servers.
const EAGER: usize = 16 << 10;

/// See the module description.
#[derive(Debug)]
pub struct Network {
    latency: Distribution,
    bandwidth: Option<Rate>,
    /// Longest eager payload in bytes.
    pub eager: usize,
    loss: f64,
    retransmit: Nanos,
    pub timeout: Nanos,
    lines: Vec<NodeLine>,
    random: Random,
}

/// A node's line to the switch.
#[derive(Clone, Copy, Debug, Default)]
struct NodeLine {
    /// Times when the queued messages of each direction have been carried.
    sends_until: Nanos,
    receives_until: Nanos,
    /// Additional delay of messages, as by an overloaded switch.
    late: Nanos,
}

impl NetworkSettings {
    fn preset(&self) -> (Distribution, Option<Rate>) {
        let micros = |micros: u64| Distribution::constant(Nanos(micros * 1000));
        match self.preset {
            NetworkPreset::Gigabit => (micros(50), Some(Rate(125e6))),
            NetworkPreset::Myri10g => (micros(12), Some(Rate(1.2e9))),
            NetworkPreset::Loopback => (micros(8), Some(Rate(4e9))),
            NetworkPreset::Free => (Distribution::ZERO, None),
        }
    }
}

impl Network {
    /// `nodes`: number of nodes.
    pub fn new(settings: &NetworkSettings, nodes: usize, random: Random) -> Self {
        let (latency, bandwidth) = settings.preset();
        Self {
            latency: settings.latency.clone().unwrap_or(latency),
            bandwidth: settings.bandwidth.or(bandwidth),
            eager: settings.eager.map_or(EAGER, |bytes| usize::try_from(bytes.0).unwrap_or(usize::MAX)),
            loss: settings.loss,
            retransmit: settings.retransmit.unwrap_or(Nanos::from_millis(200)),
            timeout: settings.timeout.unwrap_or(Nanos::from_millis(1000)),
            lines: vec![NodeLine::default(); nodes],
            random,
        }
    }

    /// Arrival time of a message of `bytes` bytes that is sent at `now`.
    pub fn send(&mut self, now: Nanos, from: usize, to: usize, bytes: usize) -> Nanos {
        let time = self.bandwidth.map_or(Nanos::ZERO, |rate| rate.time(bytes + HEADERS));
        let latency = self.latency.sample(&mut self.random);
        let begins = now.max(self.lines[from].sends_until);
        self.lines[from].sends_until = begins + time;
        // The switch forwards a message while it receives it (cut-through).
        let line = &mut self.lines[to];
        line.receives_until = (begins + latency).max(line.receives_until) + time;
        let mut arrives = line.receives_until + line.late + self.lines[from].late;
        while self.loss > 0.0 && self.random.random_bool(self.loss) {
            arrives += self.retransmit;
        }
        arrives
    }

    /// Time of a handshake before a payload: one round trip.
    pub fn handshake(&mut self) -> Nanos {
        let time = self.bandwidth.map_or(Nanos::ZERO, |rate| rate.time(HEADERS));
        let latencies = self.latency.sample(&mut self.random) + self.latency.sample(&mut self.random);
        latencies + time + time
    }

    /// Delays all further messages from and to a node.
    pub fn set_late(&mut self, node: usize, late: Nanos) {
        self.lines[node].late = late;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::random::Seed;

    fn network(text: &str) -> Network {
        let settings: NetworkSettings = toml::from_str(text).unwrap();
        Network::new(&settings, 3, Seed(1).random("network", 0))
    }

    const SLOW: &str = "latency = \"1 ms\"\nbandwidth = \"1 MB/s\"";

    #[test]
    fn a_message_takes_its_bytes_and_the_latency() {
        let mut network = network(SLOW);
        assert_eq!(network.send(Nanos(0), 0, 1, 934), Nanos(2_000_000));
        assert_eq!(network.send(Nanos(0), 0, 1, 934), Nanos(3_000_000), "one after the other");
        assert_eq!(network.send(Nanos(0), 1, 0, 934), Nanos(2_000_000), "both ways at once");
    }

    #[test]
    fn receiver_line_serialises_senders() {
        let mut network = network(SLOW);
        assert_eq!(network.send(Nanos(0), 0, 2, 934), Nanos(2_000_000));
        assert_eq!(network.send(Nanos(0), 1, 2, 934), Nanos(3_000_000));
    }

    #[test]
    fn a_lost_message_comes_later() {
        let mut network =
            network("latency = \"1 ms\"\nbandwidth = \"1 GB/s\"\nloss = 0.5\nretransmit = \"1 s\"");
        let late =
            (0..1000).filter(|_| network.send(Nanos::ZERO, 0, 1, 0) > Nanos::from_millis(1000)).count();
        assert!((430..570).contains(&late), "{late}");
        network.set_late(1, Nanos::from_millis(50_000));
        assert!(network.send(Nanos::ZERO, 0, 1, 0) > Nanos::from_millis(50_000));
    }

    #[test]
    fn network_presets_match_their_names() {
        let arrives =
            |preset: &str| network(&format!("preset = \"{preset}\"")).send(Nanos::ZERO, 0, 1, 1 << 20);
        let [gigabit, myri, loopback, free] = ["gigabit", "myri10g", "loopback", "free"].map(arrives);
        assert!(gigabit > myri && myri > loopback && loopback > free && free == Nanos::ZERO);
        assert!((gigabit.as_secs_f64() - 0.00844).abs() < 1e-4, "{gigabit}");
    }
}
