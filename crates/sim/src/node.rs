//! Nodes of a run and their numbers.

use espalier_proto::Rank;

use crate::scenario::Cluster;

/// A node of a run. Metadata services have the first numbers, then data servers, clients, and the
/// processes of servers that fail over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub u32);

/// Numbers of the nodes of a run.
///
/// Servers that fail over share one store. Each of them has a node for each rank, which answers
/// while the server holds that rank, and one for its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeNumbers {
    pub ranks: u32,
    /// Servers that fail over; 0: each rank has a server of its own.
    pub processes: u32,
    pub data: u32,
    pub clients: u32,
}

impl NodeNumbers {
    pub fn of(cluster: &Cluster) -> Self {
        Self {
            ranks: cluster.ranks.into(),
            processes: cluster.servers.into(),
            data: cluster.data.into(),
            clients: cluster.clients,
        }
    }

    /// Number of metadata services: the nodes that may answer for a rank.
    pub fn services(self) -> u32 {
        self.ranks * self.processes.max(1)
    }

    /// The rank of a metadata service.
    pub fn rank_of(self, node: Node) -> Option<Rank> {
        (node.0 < self.services()).then(|| Rank((node.0 % self.ranks) as u16))
    }

    /// The service of a rank at a server; without failover there is one for each rank.
    pub fn service(self, process: u32, rank: Rank) -> Node {
        Node(process * self.ranks + u32::from(rank.0))
    }

    pub fn first_data(self) -> Node {
        Node(self.services())
    }

    pub fn first_client(self) -> Node {
        Node(self.services() + self.data)
    }

    /// The index of a client.
    pub fn client_of(self, node: Node) -> Option<u32> {
        node.0.checked_sub(self.first_client().0).filter(|index| *index < self.clients)
    }

    /// The node of a server's process.
    pub fn process(self, process: u32) -> Node {
        Node(self.first_client().0 + self.clients + process)
    }

    /// The server that a node is part of, if servers fail over.
    pub fn process_of(self, node: Node) -> Option<u32> {
        if self.processes == 0 {
            return None;
        }
        let of_process = node.0.checked_sub(self.process(0).0);
        if node.0 < self.services() { Some(node.0 / self.ranks) } else { of_process }
    }

    /// Number of nodes of all types.
    pub fn count(self) -> u32 {
        self.process(0).0 + self.processes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_has_one_meaning() {
        let numbers = NodeNumbers { ranks: 2, processes: 3, data: 0, clients: 4 };
        assert_eq!(numbers.count(), 6 + 4 + 3);
        for process in 0..3 {
            for rank in (0..2).map(Rank) {
                let service = numbers.service(process, rank);
                assert_eq!(
                    (numbers.rank_of(service), numbers.process_of(service)),
                    (Some(rank), Some(process))
                );
                assert_eq!(numbers.client_of(service), None);
            }
            assert_eq!(numbers.process_of(numbers.process(process)), Some(process));
        }
        let client = Node(numbers.first_client().0 + 3);
        assert_eq!((numbers.client_of(client), numbers.process_of(client)), (Some(3), None));
        assert_eq!(numbers.client_of(numbers.process(0)), None);
        let fixed = NodeNumbers { processes: 0, data: 2, ..numbers };
        assert_eq!((fixed.first_data(), fixed.count()), (Node(2), 8));
        assert_eq!(fixed.process_of(Node(1)), None);
    }
}
