//! Which client belongs to which connection group, which group is served, and which comes next: clients in, groups out.
//!
//! A client joins the smallest group. The only group is split when it would grow beyond three halves of the wanted size (ScaleRPC,
//! section 3.3: lazy split). Of several groups one is split as soon as all have the wanted size: otherwise all would grow to three halves
//! of it where there are many. A group that shrinks below half of it joins another that has room.

/// The groups of one server thread. There is always at least one.
#[derive(Debug)]
pub(super) struct Groups {
    size: usize,
    most: usize,
    least: usize,
    groups: Vec<Group>,
    clients: Vec<Option<Client>>,
    served: usize,
}

#[derive(Debug, Default)]
struct Group {
    members: Vec<u32>,
    /// How many of them wait.
    waiting: usize,
}

#[derive(Debug, Clone, Copy)]
struct Client {
    group: usize,
    /// It has requests, and is not served.
    waits: bool,
}

/// Most members of a group whose wanted size this is.
pub(super) const fn most_members(size: u32) -> u32 {
    size + size / 2
}

impl Groups {
    /// Groups of about `size` clients, at least 1.
    pub(super) fn new(size: u32) -> Groups {
        Groups {
            size: size as usize,
            most: most_members(size) as usize,
            least: size as usize / 2,
            groups: vec![Group::default()],
            clients: Vec::new(),
            served: 0,
        }
    }

    #[cfg(test)]
    fn sizes(&self) -> Vec<usize> {
        self.groups.iter().map(|group| group.members.len()).collect()
    }

    fn find(&self, client: u32) -> Option<Client> {
        self.clients.get(client as usize).copied().flatten()
    }

    pub(super) fn contains(&self, client: u32) -> bool {
        self.find(client).is_some()
    }

    /// The client is in the group that is served.
    pub(super) fn is_served(&self, client: u32) -> bool {
        self.find(client).is_some_and(|it| it.group == self.served)
    }

    /// A new client has come.
    pub(super) fn join(&mut self, client: u32) {
        if self.contains(client) {
            return;
        }
        let smallest = (0..self.groups.len()).min_by_key(|&at| self.groups[at].members.len());
        let mut group = smallest.unwrap_or_default();
        let room = if self.groups.len() == 1 { self.most } else { self.size };
        if self.groups[group].members.len() >= room {
            group = self.split(group);
        }
        if self.clients.len() <= client as usize {
            self.clients.resize(client as usize + 1, None);
        }
        self.clients[client as usize] = Some(Client { group, waits: false });
        self.groups[group].members.push(client);
    }

    /// Makes a new group of the later half of one; a single member stays.
    fn split(&mut self, group: usize) -> usize {
        let members = &mut self.groups[group].members;
        let half = members.split_off(members.len().div_ceil(2));
        let new = self.groups.len();
        self.groups.push(Group::default());
        self.adopt(new, half);
        self.count_waiting(group);
        new
    }

    fn adopt(&mut self, group: usize, members: Vec<u32>) {
        for &member in &members {
            if let Some(Some(client)) = self.clients.get_mut(member as usize) {
                client.group = group;
            }
        }
        self.groups[group].members.extend(members);
        self.count_waiting(group);
    }

    fn count_waiting(&mut self, group: usize) {
        let waits = |member: &&u32| self.find(**member).is_some_and(|client| client.waits);
        self.groups[group].waiting = self.groups[group].members.iter().filter(waits).count();
    }

    /// A client has gone.
    pub(super) fn leave(&mut self, client: u32) {
        let Some(Client { group, .. }) = self.find(client) else { return };
        self.clients[client as usize] = None;
        self.groups[group].members.retain(|&member| member != client);
        self.count_waiting(group);
        let rest = self.groups[group].members.len();
        if rest >= self.least.max(1) {
            return;
        }
        let others = (0..self.groups.len()).filter(|&at| at != group);
        let smallest = others.min_by_key(|&at| self.groups[at].members.len());
        if let Some(into) = smallest
            && self.groups[into].members.len() + rest <= self.most
        {
            self.merge(group, into);
        }
    }

    fn merge(&mut self, group: usize, into: usize) {
        let members = std::mem::take(&mut self.groups[group].members);
        self.adopt(into, members);
        if self.served == group {
            self.served = into;
        }
        // The last group gets the number that is free.
        let last = self.groups.len() - 1;
        self.groups.swap_remove(group);
        if self.served == last {
            self.served = group;
        }
        if group < last {
            let members = std::mem::take(&mut self.groups[group].members);
            self.adopt(group, members);
        }
    }

    /// The client has requests and is not served, or is not waiting any more.
    pub(super) fn set_waiting(&mut self, client: u32, waits: bool) {
        let Some(Some(known)) = self.clients.get_mut(client as usize) else { return };
        if known.waits != waits {
            known.waits = waits;
            let waiting = &mut self.groups[known.group].waiting;
            *waiting = if waits { *waiting + 1 } else { *waiting - 1 };
        }
    }

    /// The group after the served one, in turn, of which a client waits.
    pub(super) fn next(&self) -> Option<usize> {
        let count = self.groups.len();
        let others = (1..count).map(|step| (self.served + step) % count);
        others.into_iter().find(|&group| self.groups[group].waiting > 0)
    }

    /// Goes on to a group.
    pub(super) fn serve(&mut self, group: usize) {
        self.served = group;
    }

    /// The members of a group that wait, the first from this one on.
    pub(super) fn waiting_from(&self, group: Option<usize>, first: usize) -> Option<(usize, u32)> {
        let group = &self.groups[group.unwrap_or(self.served)];
        if group.waiting == 0 {
            return None;
        }
        let mut members = group.members.iter().enumerate().skip(first);
        members
            .find(|(_, member)| self.find(**member).is_some_and(|client| client.waits))
            .map(|(at, member)| (at, *member))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn joined(size: u32, clients: u32) -> Groups {
        let mut groups = Groups::new(size);
        (0..clients).for_each(|client| groups.join(client));
        groups
    }

    #[test]
    fn the_only_group_grows_to_three_halves_and_is_split() {
        assert_eq!(joined(40, 60).sizes(), [60]);
        assert_eq!(joined(40, 61).sizes(), [30, 31]);
        assert_eq!(joined(1, 3).sizes(), [1, 1, 1]);
    }

    #[test]
    fn one_of_several_groups_is_split_when_all_have_the_wanted_size() {
        assert_eq!(joined(40, 80).sizes(), [40, 40]);
        assert_eq!(joined(40, 81).sizes(), [20, 40, 21]);
        assert_eq!(joined(40, 120).sizes(), [40, 40, 40]);
        assert_eq!(joined(4, 400).sizes(), [4; 100]);
    }

    #[test]
    fn a_group_below_half_joins_one_with_room() {
        let mut groups = joined(4, 7);
        assert_eq!(groups.sizes(), [3, 4]);
        groups.leave(0);
        assert_eq!(groups.sizes(), [2, 4]);
        groups.leave(1);
        assert_eq!(groups.sizes(), [5]);
        (2..7).for_each(|client| groups.leave(client));
        assert_eq!(groups.sizes(), [0], "one group is left when all have gone");
    }

    #[test]
    fn groups_that_wait_come_in_turn() {
        let mut groups = joined(1, 4);
        assert_eq!(groups.next(), None);
        groups.set_waiting(1, true);
        groups.set_waiting(3, true);
        assert_eq!(groups.next(), Some(1));
        groups.serve(1);
        assert!(groups.is_served(1));
        assert_eq!(groups.waiting_from(None, 0), Some((0, 1)));
        groups.set_waiting(1, false);
        assert_eq!(groups.waiting_from(None, 0), None);
        assert_eq!(groups.next(), Some(3));
        groups.serve(3);
        groups.set_waiting(3, false);
        assert_eq!(groups.next(), None);
    }

    proptest! {
        #[test]
        fn whatever_comes_and_goes_each_client_is_in_one_group(
            size in 1..9u32,
            steps: Vec<(u8, u8)>,
        ) {
            let mut groups = Groups::new(size);
            let mut here = std::collections::BTreeMap::new();
            for (what, client) in steps {
                let client = u32::from(client % 40);
                match what % 4 {
                    0 | 1 => {
                        groups.join(client);
                        here.entry(client).or_insert(false);
                    }
                    2 => {
                        groups.leave(client);
                        here.remove(&client);
                    }
                    _ => {
                        let waits = what & 4 != 0;
                        groups.set_waiting(client, waits);
                        here.entry(client).and_modify(|it| *it = waits);
                        if let Some(next) = groups.next() {
                            groups.serve(next);
                        }
                    }
                }
                let mut members: Vec<_> =
                    groups.groups.iter().flat_map(|group| group.members.clone()).collect();
                members.sort_unstable();
                prop_assert_eq!(members, here.keys().copied().collect::<Vec<_>>());
                let waiting: usize = groups.groups.iter().map(|group| group.waiting).sum();
                prop_assert_eq!(waiting, here.values().filter(|waits| **waits).count());
                prop_assert!(groups.served < groups.groups.len());
                prop_assert!(groups.sizes().iter().all(|len| *len <= groups.most));
                let large_enough = |len: &usize| *len > 0 || groups.groups.len() == 1;
                prop_assert!(groups.sizes().iter().all(large_enough));
                for client in here.keys() {
                    let group = groups.find(*client).unwrap().group;
                    prop_assert!(groups.groups[group].members.contains(client));
                }
            }
        }
    }
}
