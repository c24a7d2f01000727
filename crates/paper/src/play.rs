//! Simulated processes in real life: their programs, with clients that are connected to servers.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use espalier_library::{Client, Credentials};
use espalier_sim::process::{Act, Program};
use espalier_sim::{Nanos, Random, Seed};
use tokio::sync::Notify;
use tokio::task::LocalSet;

use crate::error::PaperError;
use crate::tally::Tally;

/// Processes that meet at barriers, each on the client of that number.
pub type Crew = Vec<(u32, Box<dyn Program>)>;

/// Whom they call.
#[derive(Clone, Debug)]
pub struct Called<'a> {
    pub url: &'a str,
    pub credentials: &'a Credentials,
    pub clients: u32,
    /// Whether clients cache.
    pub leases: bool,
}

/// Where the processes of a crew wait for each other.
#[derive(Debug, Default)]
struct Barrier {
    /// Those that have not ended.
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

/// Has all processes run to their end, on one thread.
///
/// # Errors
/// A client cannot connect, or the run is stopped.
pub fn play(
    crews: Vec<Crew>,
    called: &Called<'_>,
    seed: u64,
    stop: &AtomicBool,
) -> Result<Tally, PaperError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let mut clients = Vec::new();
        for _ in 0..called.clients {
            clients.push(Client::connect(called.url, called.credentials, called.leases).await?);
        }
        let (tally, begun) = (Rc::new(RefCell::new(Tally::default())), Instant::now());
        let mut running = Vec::new();
        let mut number = 0;
        for crew in crews {
            let barrier = Rc::new(RefCell::new(Barrier { left: crew.len(), ..Barrier::default() }));
            for (client, program) in crew {
                number += 1;
                let process = Running {
                    client: clients[client as usize % clients.len()].clone(),
                    program,
                    random: Seed(seed).random("process", number),
                    barrier: Rc::clone(&barrier),
                    tally: Rc::clone(&tally),
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
            client.close().await;
        }
        Ok(tally.take())
    })
}

/// A process, and what it needs.
struct Running {
    client: Client,
    program: Box<dyn Program>,
    random: Random,
    barrier: Rc<RefCell<Barrier>>,
    tally: Rc<RefCell<Tally>>,
    begun: Instant,
}

impl Running {
    async fn run(mut self) {
        let mut answer = None;
        loop {
            let act = self.program.step(Nanos::from(self.begun.elapsed()), &mut self.random, answer.take());
            let done = self.program.take_finished();
            done.iter().for_each(|done| self.tally.borrow_mut().add(done));
            match act {
                // No workload interrupts anything.
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
