//! Which client belongs to which connection group, which group is served for how long, and which comes next: clients and what they
//! send in, groups and slices out.
//!
//! A client joins the smallest group. The only group is split when it would grow beyond three halves of the wanted size (ScaleRPC,
//! section 3.3: lazy split). Of several groups one is split as soon as all have the wanted size: otherwise all would grow to three halves
//! of it where there are many. A group that shrinks below half of it joins another that has room. When a window of slices is
//! over, all groups are formed again by the [priorities](super::priority) of their clients, if that is worth it.
//!
//! Where several servers [share their slices](super::numbered), a client's group follows from its caller instead, and stays.
//!
//! No client waits for ever: the next group is always that of the client that has waited longest, and this client is the first in
//! its slice. So a client waits for at most one slice for each client that waited before it, in whichever groups they
//! are; and while groups stay as they are and calls are short, for at most one slice of each other group.

use std::cmp::Reverse;

use super::ablation::Without;
use super::priority::{Sizes, WHOLE, Work, Worth, level, share};

/// Slices of a window, for each group.
const WINDOW_SLICES: u64 = 4;

/// The groups of one server thread. There is always at least one.
#[derive(Debug)]
pub(super) struct Groups {
    sizes: Sizes,
    /// Clients are in groups by their callers, as at other servers.
    are_by_caller: bool,
    groups: Vec<Group>,
    clients: Vec<Option<Client>>,
    served: usize,
    /// How often a client began to wait: the number of the latest.
    waits: u64,
    /// Slices of this window.
    slices: u64,
    /// The sum of all groups.
    priority: u64,
    /// Clients in order: of their priorities, while groups are formed; or those that come in.
    order: Vec<u32>,
    /// Memory of groups that there are no more.
    spare: Vec<Vec<u32>>,
    without: Without,
}

#[derive(Debug, Default)]
struct Group {
    members: Vec<u32>,
    /// How many of them wait.
    waiting: usize,
    /// The turn of the one that waits longest.
    first: u64,
    /// The sum of its members.
    priority: u64,
}

#[derive(Debug, Clone, Copy)]
struct Client {
    group: usize,
    /// It has requests, and is not served.
    waits: bool,
    /// Which one it is of those that began to wait.
    number: u64,
    /// From when it counts for the turn of its group: as `number`, or later.
    turn: u64,
    /// What it did in this window.
    work: Work,
    /// Of the windows before, the later ones more.
    priority: u64,
}

/// Most members of a group whose wanted size this is.
pub(super) const fn most_members(size: u32) -> u32 {
    size + size / 2
}

impl Groups {
    /// Groups of about `size` clients, at least 1.
    pub(super) fn new(size: u32) -> Groups {
        Groups {
            sizes: Sizes::new(size),
            are_by_caller: false,
            groups: vec![Group::default()],
            clients: Vec::new(),
            served: 0,
            waits: 0,
            slices: 0,
            priority: 0,
            order: Vec::new(),
            spare: Vec::new(),
            without: Without::default(),
        }
    }

    /// Leaves this out from now on.
    pub(super) fn leave_out(&mut self, without: Without) {
        self.without = without;
    }

    /// So many groups, whose clients follow from their callers; about `size` clients of each.
    pub(super) fn by_caller(groups: usize, size: u32) -> Groups {
        let groups = (0..groups.max(1)).map(|_| Group::default()).collect();
        Groups { are_by_caller: true, groups, ..Groups::new(size) }
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

    /// A client of this caller has come, if it is new.
    pub(super) fn join_of(&mut self, client: u32, caller: u64) {
        if !self.are_by_caller {
            return self.join(client);
        }
        if !self.contains(client) {
            self.add(client, (caller % self.groups.len() as u64) as usize);
        }
    }

    /// A client has come, if it is new.
    pub(super) fn join(&mut self, client: u32) {
        if self.contains(client) {
            return;
        }
        let smallest = (0..self.groups.len()).min_by_key(|&at| self.groups[at].members.len());
        let mut group = smallest.unwrap_or_default();
        let room = if self.are_several() { self.sizes.wanted } else { self.sizes.most };
        if self.groups[group].members.len() >= room {
            group = self.split(group);
        }
        self.add(client, group);
    }

    fn add(&mut self, client: u32, group: usize) {
        if self.clients.len() <= client as usize {
            self.clients.resize(client as usize + 1, None);
            self.order.reserve(self.clients.len());
        }
        let (work, priority) = (Work::default(), 0);
        let known = Client { group, waits: false, number: 0, turn: 0, work, priority };
        self.clients[client as usize] = Some(known);
        self.groups[group].members.push(client);
    }

    /// A further group, without members.
    fn add_group(&mut self) -> usize {
        let members = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(self.sizes.most));
        self.groups.push(Group { members, ..Group::default() });
        self.groups.len() - 1
    }

    /// Makes a new group of the later half of one; a single member stays.
    fn split(&mut self, group: usize) -> usize {
        let new = self.add_group();
        let keeps = self.groups[group].members.len().div_ceil(2);
        self.move_members(group, keeps, new);
        self.count(group);
        new
    }

    /// Moves the members of a group from this one on to another.
    fn move_members(&mut self, group: usize, from: usize, into: usize) {
        let mut members = std::mem::take(&mut self.groups[group].members);
        self.groups[into].members.extend(&members[from..]);
        members.truncate(from);
        self.groups[group].members = members;
        self.adopt(into);
        self.count(into);
    }

    /// The members of a group learn that they are.
    fn adopt(&mut self, group: usize) {
        let Groups { groups, clients, .. } = self;
        for &member in &groups[group].members {
            if let Some(Some(client)) = clients.get_mut(member as usize) {
                client.group = group;
            }
        }
    }

    /// Adds up what a group knows of its members.
    fn count(&mut self, group: usize) {
        let Group { members, .. } = &self.groups[group];
        let (mut waiting, mut first, mut priority) = (0, u64::MAX, 0);
        for client in members.iter().filter_map(|member| self.find(*member)) {
            priority += client.priority;
            if client.waits {
                (waiting, first) = (waiting + 1, first.min(client.turn));
            }
        }
        let group = &mut self.groups[group];
        self.priority = self.priority - group.priority + priority;
        (group.waiting, group.first, group.priority) = (waiting, first, priority);
    }

    /// A client has gone.
    pub(super) fn leave(&mut self, client: u32) {
        let Some(Client { group, .. }) = self.find(client) else { return };
        self.clients[client as usize] = None;
        self.groups[group].members.retain(|&member| member != client);
        self.count(group);
        let rest = self.groups[group].members.len();
        if rest >= self.sizes.least || self.are_by_caller {
            return;
        }
        let others = (0..self.groups.len()).filter(|&at| at != group);
        let smallest = others.min_by_key(|&at| self.groups[at].members.len());
        if let Some(into) = smallest
            && self.groups[into].members.len() + rest <= self.sizes.most
        {
            self.merge(group, into);
        }
    }

    fn merge(&mut self, group: usize, into: usize) {
        self.move_members(group, 0, into);
        self.count(group);
        if self.served == group {
            self.served = into;
        }
        // The last group gets the number that is free.
        let last = self.groups.len() - 1;
        let Group { members, .. } = self.groups.swap_remove(group);
        self.spare.push(members);
        if self.served == last {
            self.served = group;
        }
        if group < last {
            self.adopt(group);
        }
    }

    /// The client has requests, and is not served.
    pub(super) fn wait(&mut self, client: u32) {
        self.waits += 1;
        self.wait_as(client, self.waits, self.waits);
    }

    /// The client was served, but none of its requests was taken: it waits as if it had not been.
    pub(super) fn wait_on(&mut self, client: u32) {
        let Some(known) = self.find(client) else { return };
        self.wait_as(client, known.number, known.turn);
    }

    /// The client was served, but none of its long calls was taken, because it was not its turn among those of its group: they wait
    /// as before for each other, but do not bring their group on before others.
    pub(super) fn wait_in_group(&mut self, client: u32) {
        let Some(known) = self.find(client) else { return };
        self.waits += 1;
        self.wait_as(client, known.number, self.waits);
    }

    fn wait_as(&mut self, client: u32, number: u64, turn: u64) {
        let Some(Some(known)) = self.clients.get_mut(client as usize) else { return };
        if !known.waits {
            (known.waits, known.number, known.turn) = (true, number, turn);
            let group = &mut self.groups[known.group];
            group.first = if group.waiting == 0 { turn } else { group.first.min(turn) };
            group.waiting += 1;
        }
    }

    /// The group that is served.
    pub(super) fn served(&self) -> usize {
        self.served
    }

    /// Members of this group wait.
    pub(super) fn has_waiting(&self, group: usize) -> bool {
        self.groups.get(group).is_some_and(|group| group.waiting > 0)
    }

    /// Members of the group that is served wait.
    #[inline]
    pub(super) fn have_waiting(&self) -> bool {
        self.groups[self.served].waiting > 0
    }

    /// The members of the group that is served wait no more. Gives those that did, in the order in which they began to.
    pub(super) fn take_waiting(&mut self) -> &[u32] {
        let Groups { groups, clients, order, .. } = self;
        let group = &mut groups[self.served];
        (group.waiting, group.first) = (0, u64::MAX);
        order.clear();
        for &member in &group.members {
            if let Some(Some(client)) = clients.get_mut(member as usize)
                && std::mem::take(&mut client.waits)
            {
                order.push(member);
            }
        }
        order.sort_unstable_by_key(|at| clients[*at as usize].map(|client| client.number));
        order
    }

    /// There are several groups.
    #[inline]
    pub(super) fn are_several(&self) -> bool {
        self.groups.len() > 1
    }

    /// Of the groups that are not served, that of which a client has waited longest.
    #[inline]
    pub(super) fn next(&self) -> Option<usize> {
        if !self.are_several() {
            return None;
        }
        self.longest_waiting(Some(self.served))
    }

    fn longest_waiting(&self, without: Option<usize>) -> Option<usize> {
        let waiting = self.groups.iter().enumerate().filter(|(_, group)| group.waiting > 0);
        let others = waiting.filter(|(at, _)| Some(*at) != without);
        others.min_by_key(|(_, group)| group.first).map(|(at, _)| at)
    }

    /// The members of a group that wait.
    pub(super) fn waiting(&self, group: usize) -> impl Iterator<Item = u32> {
        let members = self.groups[group].members.iter().copied();
        members.filter(|member| self.find(*member).is_some_and(|client| client.waits))
    }

    /// The client did this work in the slice that ends.
    pub(super) fn record(&mut self, client: u32, work: Work) {
        if let Some(Some(client)) = self.clients.get_mut(client as usize) {
            client.work.add(work);
        }
    }

    /// Goes on to the group of which a client has waited longest, when none is served any more. All groups may be formed again
    /// before. Gives the length of its slice, if a usual one has so many nanoseconds.
    pub(super) fn go_on(&mut self, slice_nanos: u64) -> u64 {
        let others = self.next();
        self.slices += 1;
        let is_new = self.slices >= WINDOW_SLICES * self.groups.len() as u64 && self.close_window();
        let next = if is_new { self.longest_waiting(None) } else { others };
        self.served = next.unwrap_or(self.served);
        let share = share(self.groups[self.served].priority, self.priority, self.groups.len());
        (slice_nanos * share / WHOLE).max(1)
    }

    /// Goes on to this group, when none is served any more.
    pub(super) fn go_on_to(&mut self, group: usize) {
        self.served = group;
    }

    /// Learns from the window, and forms groups by priority if that is worth it.
    fn close_window(&mut self) -> bool {
        self.slices = 0;
        if self.without.priorities() {
            return false;
        }
        for client in self.clients.iter_mut().flatten() {
            let measured = std::mem::take(&mut client.work).priority();
            client.priority = client.priority.midpoint(measured);
        }
        (0..self.groups.len()).for_each(|group| self.count(group));
        self.sort();
        let is_worth_it = self.worth_in_order().is_much_more_than(&self.worth());
        if is_worth_it {
            self.form();
        }
        is_worth_it
    }

    fn worth(&self) -> Worth {
        let priorities = self.groups.iter().map(|group| group.priority);
        Worth::of(priorities, self.priority, self.groups.len())
    }

    /// Sorts all clients by their levels, those of a group together.
    fn sort(&mut self) {
        let Groups { clients, order, .. } = self;
        order.clear();
        order.extend((0..clients.len() as u32).filter(|at| clients[*at as usize].is_some()));
        order.sort_unstable_by_key(|&client| {
            let key = |known: Client| (Reverse(level(known.priority)), known.group, client);
            clients[client as usize].map(key)
        });
    }

    fn priority_of(&self, client: u32) -> u64 {
        self.find(client).map_or(0, |client| client.priority)
    }

    /// The clients of one group after the other, in their order.
    fn groups_in_order(&self) -> impl Iterator<Item = &[u32]> + Clone {
        let mut rest = &self.order[..];
        std::iter::from_fn(move || {
            let (group, others) = rest.split_at_checked(self.cut(rest))?;
            rest = others;
            (!group.is_empty()).then_some(group)
        })
    }

    /// How many of the first of these clients make a group.
    fn cut(&self, clients: &[u32]) -> usize {
        self.sizes.cut(clients.len(), |at| level(self.priority_of(clients[at])))
    }

    /// What groups in this order would be worth.
    fn worth_in_order(&self) -> Worth {
        let groups = self.groups_in_order();
        let count = groups.clone().count();
        let sum = |group: &[u32]| group.iter().map(|client| self.priority_of(*client)).sum();
        Worth::of(groups.map(sum), self.priority, count)
    }

    /// Makes the groups that are in this order.
    fn form(&mut self) {
        for group in &mut self.groups {
            group.members.clear();
        }
        let order = std::mem::take(&mut self.order);
        let (mut rest, mut at) = (&order[..], 0);
        while !rest.is_empty() {
            let (members, others) = rest.split_at(self.cut(rest));
            let group = if at < self.groups.len() { at } else { self.add_group() };
            self.groups[group].members.extend(members);
            self.adopt(group);
            self.count(group);
            (rest, at) = (others, at + 1);
        }
        self.order = order;
        while self.groups.len() > at.max(1) {
            self.count(self.groups.len() - 1);
            self.spare.extend(self.groups.pop().map(|group| group.members));
        }
        self.served = 0;
    }
}

#[cfg(test)]
mod tests;
