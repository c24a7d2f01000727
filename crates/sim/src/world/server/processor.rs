//! Processor of a metadata server: jobs, cores and costs.

use espalier_proto::{FromClient, Request};

use crate::dist::Distribution;
use crate::model::Work;
use crate::station::Arrived;
use crate::time::Nanos;
use crate::world::event::SimEvent;
use crate::world::fabric::Fabric;
use crate::world::job::ProcessorJob;

use super::SimServer;

impl SimServer {
    pub(super) fn work(&mut self, fabric: &mut Fabric<'_>, job: ProcessorJob) {
        let idle = self.cpu.idle(fabric.now);
        if let Some(arrived) = self.cpu.arrive(fabric.now, job) {
            self.begin_job(fabric, arrived, idle);
        }
    }

    /// The service of a job begins. `idle`: idle time before.
    fn begin_job(
        &mut self,
        fabric: &mut Fabric<'_>,
        Arrived { at: since, job }: Arrived<ProcessorJob>,
        idle: Nanos,
    ) {
        let mut time = fabric.model.wake(Work::Wake, idle, &mut self.random);
        if let Some(wire) = job.wire() {
            time += self.switches.cost_of(fabric, Work::Turn, (wire, since), &mut self.random);
        }
        if let Some(work) = job.work() {
            time += fabric.model.cost(work).sample(&mut self.random);
        }
        if let ProcessorJob::Client(_, FromClient::Request { request, .. }) = &job {
            time += self.listing(fabric, request);
        }
        fabric.work(time, SimEvent::Served { node: self.node, start: self.start, since, job });
    }

    /// Cost of a listing's entries, by their number at the start of the service.
    fn listing(&mut self, fabric: &Fabric<'_>, request: &Request) -> Nanos {
        let Request::ReadDir { dir, after, limit, plus } = *request else { return Nanos::ZERO };
        let entries = self.meta().map_or(0, |meta| meta.entries_in_memory(dir, after, limit));
        let works: &[Work] = if plus { &[Work::Entry, Work::Attributes] } else { &[Work::Entry] };
        let costs =
            works.iter().map(|work| fabric.model.cost(*work)).filter(|cost| **cost != Distribution::ZERO);
        costs.fold(Nanos::ZERO, |time, cost| {
            (0..entries).fold(time, |time, _| time + cost.sample(&mut self.random))
        })
    }

    /// The service of a job ends.
    pub fn served(&mut self, fabric: &mut Fabric<'_>, since: Nanos, job: ProcessorJob) {
        let rests = self.switches.owes() && !self.cpu.has_waiting();
        if !rests {
            self.advance(fabric, since);
        }
        self.serve_job(fabric, job);
        if rests {
            self.rest(fabric, since);
        }
    }

    /// A core that has finished a job which arrived at `since` takes the next one.
    fn advance(&mut self, fabric: &mut Fabric<'_>, since: Nanos) {
        if let Some(next) = self.cpu.leave(fabric.now, since) {
            self.begin_job(fabric, next, Nanos::ZERO);
        }
    }

    /// As `advance`, after the charge for the work so far.
    pub fn rest(&mut self, fabric: &mut Fabric<'_>, since: Nanos) {
        if self.cpu.has_waiting() || !self.switches.owes() {
            return self.advance(fabric, since);
        }
        let owed = self.switches.take_owed();
        fabric.work(owed, SimEvent::Turned { node: self.node, start: self.start, since });
    }
}
