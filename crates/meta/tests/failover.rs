//! Failover: servers with random delays, pauses, ends and store errors; at most one answers for a
//! rank, and none writes to a rank's store that another has opened.

use std::collections::{BTreeMap, BTreeSet};

use espalier_meta::failover::{
    Action, ClusterMap, Failover, Input, InstanceId, ServerEntry, ServerState, StopReason, Swapped, Timing,
};
use espalier_proto::Rank;
use fastrand::Rng;

const RANKS: u16 = 2;

/// One start of a server's process.
struct ServerProcess {
    number: u16,
    machine: Failover,
    /// Rate and offset of its clock.
    rate: f64,
    offset: f64,
    paused_until: u64,
    is_alive: bool,
    open: BTreeSet<Rank>,
    follows: BTreeSet<Rank>,
    /// Ranks that it had followed when it opened them.
    opened_warm: BTreeSet<Rank>,
    stopped: Option<StopReason>,
    left: bool,
}

impl ServerProcess {
    fn clock(&self, now: u64) -> u64 {
        (now as f64 * self.rate + self.offset) as u64
    }

    /// True if the process would answer a request for the rank now, or when it is resumed.
    fn answers(&self, rank: Rank, now: u64) -> bool {
        self.is_alive
            && now >= self.paused_until
            && self.open.contains(&rank)
            && self.clock(now) < self.machine.served_until()
    }
}

enum Event {
    Tick,
    Input(Input),
    /// The compare-and-swap reaches the store.
    Swap(u64, ClusterMap),
    Look,
    Fence(Rank, Vec<String>),
}

struct World {
    random: Rng,
    now: u64,
    version: u64,
    map: ClusterMap,
    processes: BTreeMap<InstanceId, ServerProcess>,
    fenced: BTreeSet<String>,
    /// The last process that opened a rank's store.
    opened: BTreeMap<Rank, InstanceId>,
    queue: BTreeMap<(u64, u64), (InstanceId, Event)>,
    next: u64,
    faults: bool,
    timing: Timing,
    /// The store fences clients; false in a mutant.
    fences: bool,
    /// The store answers nobody before this time.
    down_until: u64,
    /// Numbers of the servers with standby replay.
    warm: BTreeSet<u16>,
}

fn store_client(instance: InstanceId) -> String {
    format!("client-{}", instance.0)
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            random: Rng::with_seed(seed),
            now: 0,
            version: 1,
            map: ClusterMap::new(RANKS),
            processes: BTreeMap::new(),
            fenced: BTreeSet::new(),
            opened: BTreeMap::new(),
            queue: BTreeMap::new(),
            next: 0,
            faults: true,
            timing: Timing::DEFAULT,
            fences: true,
            down_until: 0,
            warm: BTreeSet::new(),
        }
    }

    fn after(&mut self, delay: u64, process: InstanceId, event: Event) {
        self.next += 1;
        self.queue.insert((self.now + delay, self.next), (process, event));
    }

    /// Starts a server. Its earlier process has ended, since both listen at the same address.
    fn start(&mut self, number: u16) -> InstanceId {
        for process in self.processes.values_mut().filter(|process| process.number == number) {
            process.is_alive = false;
        }
        self.next += 1;
        let instance = InstanceId(self.next);
        let own = ServerEntry {
            instance,
            number,
            address: format!("server-{number}:1"),
            store_client: store_client(instance),
            state: ServerState::Standby,
            standby_replay: self.warm.contains(&number),
            heartbeat: 0,
        };
        let process = ServerProcess {
            number,
            machine: Failover::new(self.timing, own),
            rate: 0.95 + 0.1 * self.random.f64(),
            offset: self.random.f64() * 1e6,
            paused_until: 0,
            is_alive: true,
            open: BTreeSet::new(),
            follows: BTreeSet::new(),
            opened_warm: BTreeSet::new(),
            stopped: None,
            left: false,
        };
        self.processes.insert(instance, process);
        self.after(0, instance, Event::Tick);
        instance
    }

    /// Mostly short, sometimes seconds.
    fn delay(&mut self) -> u64 {
        match self.random.u32(..100) {
            0 if self.faults => self.random.u64(..12_000),
            1..5 if self.faults => self.random.u64(..1500),
            _ => 1 + self.random.u64(..20),
        }
    }

    fn step(&mut self) {
        let Some(((at, _), (instance, event))) = self.queue.pop_first() else { return };
        self.now = self.now.max(at);
        let process = &self.processes[&instance];
        let reaches_store = matches!(event, Event::Swap(..) | Event::Look | Event::Fence(..));
        if !reaches_store && (!process.is_alive || process.left || process.stopped.is_some()) {
            return;
        }
        // A paused process handles everything later; what it has sent arrives.
        if !reaches_store && process.paused_until > self.now {
            let delay = process.paused_until - self.now;
            return self.after(delay, instance, event);
        }
        match event {
            Event::Tick => {
                self.after(50, instance, Event::Tick);
                self.input(instance, Input::Tick);
            }
            Event::Input(input) => self.input(instance, input),
            reaching => self.store(instance, reaching),
        }
        self.check();
    }

    fn store(&mut self, instance: InstanceId, event: Event) {
        let is_fenced = self.fenced.contains(&store_client(instance));
        let is_down = self.now < self.down_until;
        let is_lost = is_down || self.faults && self.random.u32(..50) == 0;
        let answer = match event {
            _ if is_fenced => Input::Refused,
            Event::Look if is_lost => Input::Looked(None),
            Event::Look => Input::Looked(Some((self.version, self.map.clone()))),
            Event::Swap(version, map) => {
                let fits = !is_down && version == self.version;
                if fits {
                    (self.version, self.map) = (version + 1, map);
                }
                let done = Swapped::Done { version: version + 1 };
                Input::Swapped(if fits && !is_lost { done } else { Swapped::Unknown })
            }
            Event::Fence(rank, clients) => {
                if !is_lost && self.fences {
                    self.fenced.extend(clients);
                }
                Input::Fenced { rank, done: !is_lost }
            }
            Event::Tick | Event::Input(_) => return,
        };
        let delay = self.delay();
        self.after(delay, instance, Event::Input(answer));
    }

    fn input(&mut self, instance: InstanceId, input: Input) {
        if let Input::Opened { rank, done: true } = input {
            self.open(instance, rank);
        }
        let now = self.now;
        let Some(process) = self.processes.get_mut(&instance) else { return };
        let clock = process.clock(now);
        for action in process.machine.on(clock, input) {
            let delay = self.delay();
            match action {
                Action::Look => self.after(delay, instance, Event::Look),
                Action::Swap { version, map } => self.after(delay, instance, Event::Swap(version, map)),
                Action::Fence { rank, clients } => self.after(delay, instance, Event::Fence(rank, clients)),
                Action::Follow { rank } => {
                    let process = self.process(instance);
                    assert!(
                        !process.open.contains(&rank),
                        "{instance:?} follows rank {rank}, which it serves"
                    );
                    assert!(process.follows.insert(rank), "{instance:?} follows rank {rank} already");
                }
                Action::Unfollow { rank } => drop(self.process(instance).follows.remove(&rank)),
                Action::Open { rank, .. } => {
                    let process = self.process(instance);
                    if process.follows.remove(&rank) {
                        process.opened_warm.insert(rank);
                    }
                    let done = !self.faults || self.random.u32(..20) > 0;
                    self.after(delay, instance, Event::Input(Input::Opened { rank, done }));
                }
                Action::Close { rank } => {
                    self.process(instance).open.remove(&rank);
                    self.after(delay, instance, Event::Input(Input::Closed { rank }));
                }
                Action::Stop(reason) => self.process(instance).stopped = Some(reason),
                Action::Leave => self.process(instance).left = true,
            }
        }
    }

    fn process(&mut self, instance: InstanceId) -> &mut ServerProcess {
        self.processes.get_mut(&instance).expect("a process")
    }

    /// The store refuses a fenced client. All earlier openers must be fenced or have closed it.
    fn open(&mut self, instance: InstanceId, rank: Rank) {
        if self.fenced.contains(&store_client(instance)) {
            return;
        }
        for (other, process) in &self.processes {
            let is_writing = *other != instance && process.open.contains(&rank) && !process.left;
            assert!(
                !is_writing || !process.is_alive || self.fenced.contains(&store_client(*other)),
                "{other:?} can write to rank {rank}, which {instance:?} opens"
            );
        }
        self.opened.insert(rank, instance);
        self.process(instance).open.insert(rank);
    }

    fn check(&self) {
        for rank in (0..RANKS).map(Rank) {
            let answering: Vec<_> =
                self.processes.iter().filter(|(_, process)| process.answers(rank, self.now)).collect();
            assert!(answering.len() <= 1, "{} servers answer for rank {rank}", answering.len());
        }
    }

    /// Ends a process. The others notice at once, or by its silence.
    fn kill(&mut self, instance: InstanceId) {
        self.process(instance).is_alive = false;
        let others: Vec<_> = self.processes.keys().copied().filter(|other| *other != instance).collect();
        for other in others {
            if self.random.bool() {
                self.after(5, other, Event::Input(Input::Ended(instance)));
            }
        }
    }

    fn run(&mut self, ms: u64) {
        let until = self.now + ms;
        while self.queue.first_key_value().is_some_and(|((at, _), _)| *at <= until) {
            self.step();
        }
        self.now = until;
    }

    fn holder(&self, rank: Rank) -> Option<InstanceId> {
        let answers = |(_, process): &(&InstanceId, &ServerProcess)| process.answers(rank, self.now);
        self.processes.iter().find(answers).map(|(instance, _)| *instance)
    }

    /// Time until the rank is answered for.
    fn wait_for(&mut self, rank: Rank, limit: u64) -> u64 {
        let began = self.now;
        while self.holder(rank).is_none() {
            assert!(self.now < began + limit, "rank {rank} has no holder after {limit} ms: {:?}", self.map);
            self.run(10);
        }
        self.now - began
    }
}

fn calm(servers: u16) -> (World, Vec<InstanceId>) {
    let mut world = World::new(1);
    world.faults = false;
    let started = (0..servers).map(|number| world.start(number)).collect();
    for rank in (0..RANKS).map(Rank) {
        world.wait_for(rank, 3000);
    }
    world.run(1000);
    (world, started)
}

#[test]
fn servers_share_the_ranks() {
    let (world, started) = calm(3);
    let [first, second] = [Rank(0), Rank(1)].map(|rank| world.holder(rank));
    assert!(first.is_some() && second.is_some() && first != second, "{first:?} {second:?}");
    assert_eq!(world.map.servers.len(), started.len());
}

#[test]
fn only_server_takes_all_ranks() {
    calm(1);
}

#[test]
fn standby_takes_rank_of_ended_server() {
    let (mut world, _) = calm(3);
    let holder = world.holder(Rank(0)).expect("a holder");
    world.process(holder).is_alive = false;
    let others: Vec<_> = world.processes.keys().copied().filter(|other| *other != holder).collect();
    for other in others {
        world.after(5, other, Event::Input(Input::Ended(holder)));
    }
    assert!(world.wait_for(Rank(0), 5000) < 1000);
    assert!(world.fenced.contains(&store_client(holder)));
    assert!(world.map.server(holder).is_none());
}

#[test]
fn server_with_a_broken_journal_stops_and_is_replaced() {
    let (mut world, _) = calm(3);
    let holder = world.holder(Rank(0)).expect("a holder");
    world.after(0, holder, Event::Input(Input::Broken));
    world.run(50);
    assert_eq!(world.process(holder).stopped, Some(StopReason::Broken));
    assert!((7000..14_000).contains(&world.wait_for(Rank(0), 15_000)));
    assert!(world.fenced.contains(&store_client(holder)));
}

#[test]
fn standby_takes_rank_of_paused_server_which_then_stops() {
    let (mut world, _) = calm(3);
    let holder = world.holder(Rank(1)).expect("a holder");
    world.process(holder).paused_until = world.now + 60_000;
    assert!((7000..14_000).contains(&world.wait_for(Rank(1), 15_000)));
    world.run(60_000);
    assert!(world.process(holder).stopped.is_some());
}

#[test]
fn draining_server_hands_over_at_once() {
    let (mut world, _) = calm(3);
    let holder = world.holder(Rank(0)).expect("a holder");
    world.after(0, holder, Event::Input(Input::Drain));
    world.run(200);
    assert!(world.wait_for(Rank(0), 1000) < 800);
    world.run(500);
    assert!(world.process(holder).left);
    assert!(world.fenced.is_empty(), "nobody was fenced");
}

#[test]
fn restarted_server_replaces_its_earlier_start() {
    let (mut world, started) = calm(1);
    world.process(started[0]).is_alive = false;
    world.start(0);
    assert!(world.wait_for(Rank(0), 5000) < 1000);
    assert!(world.fenced.contains(&store_client(started[0])));
}

#[test]
fn server_without_store_answers_nothing_past_its_lease() {
    let (mut world, started) = calm(1);
    world.queue.clear();
    let process = &world.processes[&started[0]];
    let (until, clock) = (process.machine.served_until(), process.clock(world.now));
    assert!(until > clock && until <= clock + Timing::DEFAULT.lease_ms);
    world.run(Timing::DEFAULT.lease_ms * 11 / 10);
    assert_eq!(world.holder(Rank(0)), None);
}

#[test]
fn servers_keep_their_ranks_when_the_store_was_down() {
    let (mut world, started) = calm(3);
    let holders = [Rank(0), Rank(1)].map(|rank| world.holder(rank));
    world.down_until = world.now + 30_000;
    world.run(30_000);
    assert_eq!(world.holder(Rank(0)), None, "leases are over");
    world.run(3000);
    assert_eq!([Rank(0), Rank(1)].map(|rank| world.holder(rank)), holders);
    assert!(started.iter().all(|instance| world.map.server(*instance).is_some()));
    assert!(world.fenced.is_empty());
}

/// Two servers with a rank each, and these standbys.
fn with_standbys(warm: &[u16], cold: &[u16]) -> (World, Vec<InstanceId>) {
    let (mut world, mut started) = calm(2);
    world.warm = warm.iter().copied().collect();
    let mut numbers = [cold, warm].concat();
    numbers.sort_unstable();
    started.extend(numbers.into_iter().map(|number| world.start(number)));
    world.run(2000);
    (world, started)
}

#[test]
fn warm_standby_follows_all_ranks_and_takes_the_free_one() {
    let (mut world, started) = with_standbys(&[3], &[2, 4]);
    let follows = |world: &World, of: usize| world.processes[&started[of]].follows.clone();
    assert_eq!(follows(&world, 3), BTreeSet::from([Rank(0), Rank(1)]));
    assert!([0, 1, 2, 4].into_iter().all(|other| follows(&world, other).is_empty()));
    let holder = world.holder(Rank(1)).expect("a holder");
    world.kill(holder);
    world.wait_for(Rank(1), 15_000);
    assert_eq!(world.holder(Rank(1)), Some(started[3]));
    assert!(world.processes[&started[3]].opened_warm.contains(&Rank(1)));
    assert!(follows(&world, 3).is_empty(), "an active server follows nothing");
}

#[test]
fn only_warm_standby_takes_a_second_rank_at_once() {
    let (mut world, started) = with_standbys(&[2], &[]);
    for rank in [0, 1] {
        let holder = world.holder(Rank(rank)).expect("a holder");
        world.kill(holder);
    }
    world.wait_for(Rank(0), 15_000);
    assert!(world.wait_for(Rank(1), 5000) < 1000, "other servers would wait for two seconds");
    assert_eq!(world.processes[&started[2]].opened_warm, BTreeSet::from([Rank(0), Rank(1)]));
}

#[test]
fn warm_standbys_share_the_ranks() {
    let (mut world, started) = with_standbys(&[2, 3], &[]);
    let follows = |world: &World, of: usize| world.processes[&started[of]].follows.clone();
    assert_eq!(follows(&world, 2), BTreeSet::from([Rank(0)]));
    assert_eq!(follows(&world, 3), BTreeSet::from([Rank(1)]));
    world.after(0, started[2], Event::Input(Input::Drain));
    world.run(1000);
    assert!(world.process(started[2]).left);
    assert_eq!(follows(&world, 3), BTreeSet::from([Rank(0), Rank(1)]));
}

#[test]
fn rank_whose_follower_has_ended_too_is_taken_by_another_server() {
    let (mut world, started) = with_standbys(&[3], &[2]);
    let holder = world.holder(Rank(0)).expect("a holder");
    world.process(started[3]).is_alive = false;
    world.kill(holder);
    world.wait_for(Rank(0), 15_000);
    assert_eq!(world.holder(Rank(0)), Some(started[2]));
}

/// Servers start, end, pause and drain at random; afterwards new ones serve all ranks.
fn run_at_random(seed: u64, timing: Timing, fences: bool) {
    let mut world = World { timing, fences, ..World::new(seed) };
    let servers = 2 + world.random.u16(..3);
    world.warm = (0..2 * servers).filter(|_| world.random.bool()).collect();
    for number in 0..servers {
        world.start(number);
    }
    for _ in 0..30 {
        let ms = world.random.u64(..8000);
        world.run(ms);
        let alive = world.processes.iter().filter(|(_, process)| process.is_alive);
        let mut alive: Vec<_> = alive.map(|(instance, _)| *instance).collect();
        world.random.shuffle(&mut alive);
        let Some(instance) = alive.pop() else { continue };
        match world.random.u32(..4) {
            0 => world.kill(instance),
            1 => {
                let pause = world.random.u64(..25_000);
                world.process(instance).paused_until = world.now + pause;
            }
            2 => world.after(0, instance, Event::Input(Input::Drain)),
            _ => {
                let number = world.random.u16(..2 * servers);
                world.start(number);
            }
        }
    }
    world.faults = false;
    for number in 0..servers {
        world.start(100 + number);
    }
    world.run(40_000);
    for rank in (0..RANKS).map(Rank) {
        world.wait_for(rank, 15_000);
    }
}

#[test]
fn random_faults_leave_one_holder() {
    (0..60).for_each(|seed| run_at_random(seed, Timing::DEFAULT, true));
}

#[test]
fn mutants_are_found() {
    let early = Timing { takeover_ms: 6000, ..Timing::DEFAULT };
    for (timing, fences) in [(early, true), (Timing::DEFAULT, false)] {
        let fails = |seed| std::panic::catch_unwind(move || run_at_random(seed, timing, fences)).is_err();
        assert!((0..60).any(fails), "takeover after {} ms, fencing: {fences}", timing.takeover_ms);
    }
}
