//! Tests of the lease table without the machine.

use super::*;

const A: ClientId = ClientId(1);
const B: ClientId = ClientId(2);
const KEY: LeaseKey = LeaseKey::Inode(Ino(7));

fn give(leases: &mut Leases, client: ClientId, now: u64) -> bool {
    let epoch = leases.prepare_grant(client, &[KEY], now);
    leases.finish_grant(client, &[KEY], epoch, now)
}

#[test]
fn renewed_lease_lasts_and_other_expires() {
    let mut leases = Leases::new(10_000, 10);
    assert!(give(&mut leases, A, 0) && give(&mut leases, B, 0));
    assert!(give(&mut leases, A, 9_000));
    leases.tick(11_000);
    assert_eq!((leases.held(), leases.counts.expired), (1, 1));
    assert!(!leases.revoke(A, KEY, None, 11_000));
    assert!(leases.revoke(B, KEY, None, 11_000));
    leases.tick(20_000);
    assert_eq!((leases.held(), leases.counts.unanswered), (0, 1));
    assert!(leases.holders.is_empty() && leases.order.is_empty() && leases.revocations.is_empty());
}

#[test]
fn expired_leases_make_room_without_tick() {
    let mut leases = Leases::new(10_000, 1_000);
    for ino in 0..100_000 {
        let key = [LeaseKey::Inode(Ino(ino))];
        let epoch = leases.prepare_grant(A, &key, ino * 100);
        assert!(leases.finish_grant(A, &key, epoch, ino * 100));
    }
    assert!(leases.held() <= 112, "{}", leases.held());
}

#[test]
fn dependent_lasts_as_long_as_its_lease() {
    let mut leases = Leases::new(10_000, 10);
    let dir = Ino(6);
    for client in [A, B] {
        assert!(give(&mut leases, client, 0));
        leases.inherits(Ino(7), dir);
    }
    assert_eq!(leases.revoke_dependents(dir, 0), Some(KEY));
    assert_eq!(leases.outgoing.iter().map(|sent| sent.client).collect::<Vec<_>>(), [A, B]);
    leases.revoked(A, RevocationId(1));
    leases.revoked(B, RevocationId(2));
    assert_eq!(leases.revoke_dependents(dir, 0), None);
    leases.tick(11_000);
    assert!(leases.dependents.is_empty());
}

#[test]
fn prepared_grant_is_void_after_any_change() {
    let mut leases = Leases::new(10_000, 10);
    for changer in [A, B] {
        let epoch = leases.prepare_grant(A, &[KEY], 0);
        assert!(!leases.revoke(changer, KEY, None, 0), "the reply has not left");
        assert!(!leases.finish_grant(A, &[KEY], epoch, 0));
    }
    // A holder that has expired and was added again does not revive an old grant.
    let epoch = leases.prepare_grant(A, &[KEY], 0);
    leases.revoke(B, KEY, None, 0);
    leases.tick(20_000);
    let later = leases.prepare_grant(A, &[KEY], 20_000);
    assert!(!leases.finish_grant(A, &[KEY], epoch, 20_000) && leases.finish_grant(A, &[KEY], later, 20_000));
}

#[test]
fn while_a_revocation_is_not_answered_its_client_gets_no_new_lease() {
    let mut leases = Leases::new(10_000, 10);
    assert!(give(&mut leases, A, 0));
    assert!(leases.revoke(B, KEY, None, 0) && leases.revoke(B, KEY, None, 0));
    assert_eq!(leases.outgoing.len(), 1, "sent once");
    assert!(!give(&mut leases, A, 0));
    leases.revoked(A, RevocationId(1));
    assert!(!leases.revoke(B, KEY, None, 0));
    assert!(give(&mut leases, A, 0));
}

#[test]
fn grant_barriers_are_counted() {
    let mut leases = Leases::new(10_000, 10);
    let (mut one, mut other) = (Vec::new(), Vec::new());
    leases.raise_barrier(&mut one, KEY);
    leases.raise_barrier(&mut one, KEY);
    assert!(leases.may_give(KEY, &one, 0) && !leases.may_give(KEY, &other, 0));
    leases.raise_barrier(&mut other, KEY);
    assert!(!leases.may_give(KEY, &one, 0));
    leases.lift_barriers(&mut other);
    leases.lift_barriers(&mut one);
    assert!(leases.may_give(KEY, &[], 0) && leases.barriers.is_empty());
}

#[test]
fn waiters_resume_after_all_revocations() {
    let mut leases = Leases::new(10_000, 10);
    for client in [A, B, ClientId(3)] {
        assert!(give(&mut leases, client, 0));
    }
    assert!(leases.revoke(A, KEY, None, 0) && leases.revoke(B, KEY, None, 0));
    leases.wait(KEY, A, 100);
    leases.wait(KEY, B, 101);
    // The revocations were sent in the order B, 3, A.
    assert_eq!(leases.revoked(ClientId(3), RevocationId(2)), []);
    assert_eq!(leases.revoked(B, RevocationId(1)), [100]);
    assert_eq!(leases.drop_client(A, 0), [101]);
    assert!(leases.waiting.is_empty());
}
