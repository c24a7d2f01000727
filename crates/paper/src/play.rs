//! Simulated processes on real servers.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use espalier_client::{Answer, Call};
use espalier_library::{Client, Credentials};
use espalier_proto::{Caller, Errno};
use espalier_sim::process::{Act, Program};
use espalier_sim::{Caching, Nanos, Random, Seed, TtlCache};
use tokio::sync::Notify;
use tokio::task::LocalSet;

use crate::error::PaperError;
use crate::summary::Summary;

/// Processes that share barriers, each with the number of its client.
pub type ProcessGroup = Vec<(u32, Box<dyn Program>)>;

/// The servers to connect to.
#[derive(Clone, Debug)]
pub struct Called<'a> {
    pub url: &'a str,
    pub credentials: &'a Credentials,
    pub clients: u32,
    pub caching: Caching,
}

/// A client, and the TTL cache of the processes that use it.
struct Believing {
    client: Client,
    believed: RefCell<Option<TtlCache>>,
    begun: Instant,
}

impl Believing {
    async fn call(&self, caller: Caller, call: Call<'static>) -> Result<Answer, Errno> {
        let now = || Nanos::from(self.begun.elapsed());
        let known = self.believed.borrow().as_ref().and_then(|it| it.answer(now(), &call));
        if let Some(answer) = known {
            return Ok(answer);
        }
        let requested = self.believed.borrow().is_some().then(|| call.clone());
        let result = self.client.call(caller, call).await;
        if let (Some(believed), Some(requested)) = (&mut *self.believed.borrow_mut(), requested) {
            believed.learn(now(), &requested, &result);
        }
        result
    }

    fn forget(&self) {
        self.client.forget();
        self.believed.borrow_mut().iter_mut().for_each(TtlCache::forget);
    }
}

/// A barrier of a crew.
#[derive(Debug, Default)]
struct Barrier {
    /// Processes that have not ended.
    left: usize,
    waiting: usize,
    passed: u64,
    opened: Rc<Notify>,
}

impl Barrier {
    fn open_if_all_wait(&mut self) {
        if self.waiting >= self.left {
            (self.waiting, self.passed) = (0, self.passed + 1);
            self.opened.notify_waiters();
        }
    }

    async fn wait(barrier: &RefCell<Self>) {
        let (opened, before) = {
            let mut barrier = barrier.borrow_mut();
            barrier.waiting += 1;
            let before = barrier.passed;
            barrier.open_if_all_wait();
            (Rc::clone(&barrier.opened), before)
        };
        while barrier.borrow().passed == before {
            opened.notified().await;
        }
    }
}

/// Runs all processes to their end, on one thread.
///
/// # Errors
/// A client cannot connect, or the run is stopped.
pub fn play(
    crews: Vec<ProcessGroup>,
    called: &Called<'_>,
    seed: u64,
    stop: &AtomicBool,
) -> Result<Summary, PaperError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let (mut clients, leases) = (Vec::new(), called.caching == Caching::Leases);
        let (summary, begun) = (Rc::new(RefCell::new(Summary::default())), Instant::now());
        for _ in 0..called.clients {
            let client = Client::connect(called.url, called.credentials, leases).await?;
            let believed = RefCell::new(TtlCache::of(called.caching));
            clients.push(Rc::new(Believing { client, believed, begun }));
        }
        let mut running = Vec::new();
        let mut number = 0;
        for crew in crews {
            let barrier = Rc::new(RefCell::new(Barrier { left: crew.len(), ..Barrier::default() }));
            for (client, program) in crew {
                number += 1;
                let process = Running {
                    client: Rc::clone(&clients[client as usize % clients.len()]),
                    program,
                    random: Seed(seed).random("process", number),
                    barrier: Rc::clone(&barrier),
                    summary: Rc::clone(&summary),
                    begun,
                };
                running.push(tokio::task::spawn_local(process.run()));
            }
        }
        for process in running {
            while !process.is_finished() {
                if stop.load(Ordering::Relaxed) {
                    return Err(PaperError::Stopped);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        for client in clients {
            client.client.clone().close().await;
        }
        Ok(summary.take())
    })
}

/// A process with its environment.
struct Running {
    client: Rc<Believing>,
    program: Box<dyn Program>,
    random: Random,
    barrier: Rc<RefCell<Barrier>>,
    summary: Rc<RefCell<Summary>>,
    begun: Instant,
}

impl Running {
    async fn run(mut self) {
        let mut answer = None;
        loop {
            let act = self.program.step(Nanos::from(self.begun.elapsed()), &mut self.random, answer.take());
            let done = self.program.take_finished();
            done.iter().for_each(|done| self.summary.borrow_mut().add(done));
            match act {
                // Workloads interrupt nothing.
                Act::Call(caller, call) | Act::CallFor(caller, call, _) => {
                    answer = Some(self.client.call(caller, call).await);
                }
                Act::Pause(time) => tokio::time::sleep(Duration::from_nanos(time.0)).await,
                Act::Forget => self.client.forget(),
                Act::Barrier(_) => Barrier::wait(&self.barrier).await,
                Act::End => {
                    let mut barrier = self.barrier.borrow_mut();
                    barrier.left -= 1;
                    if barrier.left > 0 {
                        barrier.open_if_all_wait();
                    }
                    return;
                }
            }
        }
    }
}
