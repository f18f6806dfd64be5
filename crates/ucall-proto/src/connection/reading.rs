//! What a connection does with the bytes of its peer.
//!
//! [`Reading::after`] has all transitions. These are the ones between the four states:
//!
//! | state | requests | bytes | `Wait` | `Run` | `Discard` | `End` | `Close` |
//! |---|---|---|---|---|---|---|---|
//! | `Open` | run | arrive | `Paused` | - | `Discarding` | `Discarding` | `Closed` |
//! | `Paused` | wait | may arrive | - | `Open` | `Discarding` | - | `Closed` |
//! | `Discarding` | none | are discarded | - | - | - | - | `Closed` |
//! | `Closed` | none | none | - | - | - | - | - |
//!
//! `End` is also noted in `Paused`, whose requests still run, and in `Discarding`. Within `Open` an
//! incomplete request determines where its next bytes go, see [`Destination`]. While a target is
//! `Filling`, the engine has the memory of the input, which the connection counts until
//! `TargetReturned`, even if it discards the input or is closed in between.
//!
//! `Paused` is no [`NextAction::Pause`](super::NextAction) while a search for requests to cancel
//! wants more input, and `Open` is one without memory. `waiting.rs` decides most `Wait`s.

/// What a connection does with the bytes of its peer.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reading {
    /// Requests run as they arrive.
    Open {
        destination: Destination,
        /// The incomplete request may exceed the budget.
        is_exempt: bool,
    },
    /// Requests wait in the input, for calls to end or for output to be sent.
    Paused {
        /// The peer has shut down its side.
        is_ended: bool,
    },
    /// No more requests are read; further input is discarded.
    Discarding { discarded: usize, is_ended: bool, is_filling: bool },
    /// Nothing more is expected of the peer.
    Closed { is_filling: bool },
}

/// Where the next bytes of a request go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Destination {
    /// To a buffer of the engine, from which requests run.
    Buffer,
    /// The rest of a large body, to a target that the engine should poll.
    Target,
    /// To the target that the engine has, until it returns it.
    Filling,
    /// Nowhere: there is no memory for the rest of the request.
    NoMemory,
    /// Nowhere: what has arrived of the body is decoded in the next turn.
    NextTurn,
}

/// What changes a [`Reading`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadEvent {
    /// The next request has to wait.
    Wait,
    /// The requests in the input run.
    Run,
    /// The memory was counted, and no request is incomplete.
    CountedWhole,
    /// The memory was counted, and the body of a request is incomplete.
    CountedPartial {
        /// The budget is exceeded.
        is_full: bool,
        /// The rest should be received into a target.
        is_large: bool,
    },
    /// The memory was counted, and a part of a body has arrived that is not decoded.
    CountedUndecoded {
        /// The budget is exceeded.
        is_full: bool,
    },
    /// The request that waits for memory may exceed the budget.
    Exempt,
    /// The engine has the target.
    TargetPolled,
    TargetReturned,
    /// No more requests are read.
    Discard,
    /// This number of bytes was discarded.
    Discarded(usize),
    /// The peer has shut down its side.
    End,
    Close,
}

impl Reading {
    /// The state of a new connection, and between requests.
    pub(super) const OPEN: Self = Self::Open { destination: Destination::Buffer, is_exempt: false };

    /// The state after an event.
    #[inline(always)]
    pub(super) fn after(self, event: ReadEvent) -> Self {
        use Destination::{Buffer, Filling, NextTurn, NoMemory, Target};
        use ReadEvent as Event;
        let is_filling = self.is_filling();
        match (self, event) {
            // The engine fills a target: no request runs or waits, and nothing is counted.
            (
                Self::Open { destination: Filling, .. },
                Event::Wait
                | Event::CountedWhole
                | Event::CountedPartial { .. }
                | Event::CountedUndecoded { .. },
            ) => self,
            (Self::Open { .. }, Event::Wait) => Self::Paused { is_ended: false },
            (Self::Paused { .. }, Event::Run) => Self::OPEN,

            (Self::Open { .. }, Event::CountedWhole) => Self::OPEN,
            (Self::Open { is_exempt, .. }, Event::CountedPartial { is_full, is_large }) => {
                let destination = match (is_full && !is_exempt, is_large) {
                    (true, _) => NoMemory,
                    (false, true) => Target,
                    (false, false) => Buffer,
                };
                Self::Open { destination, is_exempt }
            }
            (Self::Open { is_exempt, .. }, Event::CountedUndecoded { is_full }) => {
                let destination = if is_full && !is_exempt { NoMemory } else { NextTurn };
                Self::Open { destination, is_exempt }
            }
            (Self::Open { destination: NoMemory, .. }, Event::Exempt) => {
                Self::Open { destination: NoMemory, is_exempt: true }
            }
            (Self::Open { destination: Target, is_exempt }, Event::TargetPolled) => {
                Self::Open { destination: Filling, is_exempt }
            }
            (Self::Open { destination: Filling, is_exempt }, Event::TargetReturned) => {
                Self::Open { destination: Buffer, is_exempt }
            }
            (Self::Discarding { discarded, is_ended, .. }, Event::TargetReturned) => {
                Self::Discarding { discarded, is_ended, is_filling: false }
            }
            (Self::Closed { .. }, Event::TargetReturned) => Self::Closed { is_filling: false },

            (Self::Open { .. }, Event::Discard) => {
                Self::Discarding { discarded: 0, is_ended: false, is_filling }
            }
            (Self::Paused { is_ended }, Event::Discard) => {
                Self::Discarding { discarded: 0, is_ended, is_filling }
            }
            (Self::Discarding { discarded, is_ended, .. }, Event::Discarded(count)) => {
                Self::Discarding { discarded: discarded + count, is_ended, is_filling }
            }
            (Self::Open { .. }, Event::End) => {
                Self::Discarding { discarded: 0, is_ended: true, is_filling }
            }
            (Self::Paused { .. }, Event::End) => Self::Paused { is_ended: true },
            (Self::Discarding { discarded, .. }, Event::End) => {
                Self::Discarding { discarded, is_ended: true, is_filling }
            }
            (_, Event::Close) => Self::Closed { is_filling },
            (state, _) => state,
        }
    }

    /// Changes to the state after an event.
    #[inline(always)]
    pub(super) fn handle(&mut self, event: ReadEvent) {
        *self = self.after(event);
    }

    /// Whether more requests are read, now or later.
    #[inline(always)]
    pub(super) fn takes_requests(self) -> bool {
        matches!(self, Self::Open { .. } | Self::Paused { .. })
    }

    #[inline(always)]
    pub(super) fn is_paused(self) -> bool {
        matches!(self, Self::Paused { .. })
    }

    /// Whether the peer has shut down its side.
    pub(super) fn is_ended(self) -> bool {
        matches!(self, Self::Paused { is_ended: true } | Self::Discarding { is_ended: true, .. })
    }

    pub(super) fn is_filling(self) -> bool {
        match self {
            Self::Open { destination, .. } => destination == Destination::Filling,
            Self::Paused { .. } => false,
            Self::Discarding { is_filling, .. } | Self::Closed { is_filling } => is_filling,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const EVENTS: [ReadEvent; 16] = [
        ReadEvent::Wait,
        ReadEvent::Run,
        ReadEvent::CountedWhole,
        ReadEvent::CountedPartial { is_full: false, is_large: false },
        ReadEvent::CountedPartial { is_full: false, is_large: true },
        ReadEvent::CountedPartial { is_full: true, is_large: false },
        ReadEvent::CountedPartial { is_full: true, is_large: true },
        ReadEvent::CountedUndecoded { is_full: false },
        ReadEvent::CountedUndecoded { is_full: true },
        ReadEvent::Exempt,
        ReadEvent::TargetPolled,
        ReadEvent::TargetReturned,
        ReadEvent::Discard,
        ReadEvent::Discarded(3),
        ReadEvent::End,
        ReadEvent::Close,
    ];

    /// Each state, and the state after each of [`EVENTS`], or `.` if it stays. `+` is exempt from
    /// the budget, `|` ended, `<` filling, and a number that of the bytes that were discarded.
    const TABLE: &str = "
  state wait run  whole fits  fit-l full  ful-l piece pie-f exempt poll  back  disc +3   end   close
  open  paus .    .     .     targ  none  none  turn  none  .      .     .     d0   .    d0|   shut
  targ  paus .    open  open  .     none  none  turn  none  .      fill  .     d0   .    d0|   shut
  fill  .    .    .     .     .     .     .     .     .     .      .     open  d0<  .    d0|<  shut<
  none  paus .    open  open  targ  .     .     turn  .     none+  .     .     d0   .    d0|   shut
  turn  paus .    open  open  targ  none  none  .     none  .      .     .     d0   .    d0|   shut
  open+ paus .    open  .     targ+ .     targ+ turn+ turn+ .      .     .     d0   .    d0|   shut
  targ+ paus .    open  open+ .     open+ .     turn+ turn+ .      fill+ .     d0   .    d0|   shut
  fill+ .    .    .     .     .     .     .     .     .     .      .     open+ d0<  .    d0|<  shut<
  none+ paus .    open  open+ targ+ open+ targ+ turn+ turn+ .      .     .     d0   .    d0|   shut
  turn+ paus .    open  open+ targ+ open+ targ+ .     .     .      .     .     d0   .    d0|   shut
  paus  .    open .     .     .     .     .     .     .     .      .     .     d0   .    paus| shut
  paus| .    open .     .     .     .     .     .     .     .      .     .     d0|  .    .     shut
  d0    .    .    .     .     .     .     .     .     .     .      .     .     .    d3   d0|   shut
  d0|   .    .    .     .     .     .     .     .     .     .      .     .     .    d3|  .     shut
  d0<   .    .    .     .     .     .     .     .     .     .      .     d0    .    d3<  d0|<  shut<
  d0|<  .    .    .     .     .     .     .     .     .     .      .     d0|   .    d3|< .     shut<
  shut  .    .    .     .     .     .     .     .     .     .      .     .     .    .    .     .
  shut< .    .    .     .     .     .     .     .     .     .      .     shut  .    .    .     .
    ";

    /// The state of this name in [`TABLE`].
    pub(in super::super) fn state(name: &str) -> Reading {
        let (is_ended, is_filling) = (name.contains('|'), name.ends_with('<'));
        let is_exempt = name.ends_with('+');
        let open = |destination| Reading::Open { destination, is_exempt };
        match name.trim_end_matches(['+', '|', '<']) {
            "open" => open(Destination::Buffer),
            "targ" => open(Destination::Target),
            "fill" => open(Destination::Filling),
            "none" => open(Destination::NoMemory),
            "turn" => open(Destination::NextTurn),
            "paus" => Reading::Paused { is_ended },
            "shut" => Reading::Closed { is_filling },
            other => {
                let discarded = other.strip_prefix('d').and_then(|count| count.parse().ok());
                let discarded = discarded.unwrap_or_else(|| panic!("{name} is no state"));
                Reading::Discarding { discarded, is_ended, is_filling }
            }
        }
    }

    #[test]
    fn each_event_has_its_effect_in_each_state() {
        let rows = TABLE.trim().lines().skip(1).map(str::split_whitespace);
        let mut states = Vec::new();
        for mut row in rows {
            let name = row.next().expect("a state");
            let cells: Vec<&str> = row.collect();
            assert_eq!(cells.len(), EVENTS.len(), "{name}");
            for (event, cell) in EVENTS.into_iter().zip(cells) {
                let next = state(if cell == "." { name } else { cell });
                assert_eq!(state(name).after(event), next, "{event:?} in {name}");
            }
            assert!(!states.contains(&state(name)), "{name} twice");
            states.push(state(name));
        }
        assert_eq!(states.len(), 10 + 2 + 4 + 2, "the destinations, exempt or not, and all others");
    }
}
