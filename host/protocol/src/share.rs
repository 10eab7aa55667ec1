//! How much of what is limited one client may hold.
//!
//! A client may hold at most three times what it leaves free. Alone it gets three quarters, two get three sevenths each, and
//! however many there are, something is left for the next one. Nothing has to be configured or known of the others.

/// The client of a server that has only one: it leaves nothing to others, as there are none.
pub const ONLY_CLIENT: u64 = 0;

/// Whether a client that holds `held` may take `amount` of the `free` rest.
pub fn may_take(client: u64, held: usize, free: usize, amount: usize) -> bool {
    let Some(left) = free.checked_sub(amount) else { return false };
    client == ONLY_CLIENT || held == 0 || held.saturating_add(amount) <= left.saturating_mul(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many each of `clients` clients gets, if they ask for one more in turn until none gets any.
    fn shares(clients: u64, total: usize) -> Vec<usize> {
        let mut held = vec![0; clients as usize];
        loop {
            let before = held.clone();
            for client in 0..clients as usize {
                let free = total - held.iter().sum::<usize>();
                held[client] += usize::from(may_take(client as u64 + 1, held[client], free, 1));
            }
            if held == before {
                return held;
            }
        }
    }

    #[test]
    fn something_is_left_for_one_more_client() {
        assert_eq!(shares(1, 256), [192]);
        assert_eq!(shares(2, 256), [110, 109]);
        assert!(shares(20, 256).iter().sum::<usize>() < 256);
        assert_eq!(shares(1, 2), [1]);
    }

    #[test]
    fn the_only_client_may_take_all() {
        assert!(may_take(ONLY_CLIENT, 255, 1, 1));
        assert!(!may_take(ONLY_CLIENT, 256, 0, 1));
    }

    #[test]
    fn a_client_without_any_gets_the_last() {
        assert!(may_take(7, 0, 1, 1));
        assert!(!may_take(7, 0, 0, 1));
    }
}
