//! Fair shares of a limited resource among clients.
//!
//! A client may hold at most three times what it leaves free. One client gets three quarters, two get three sevenths each, and
//! however many there are, something is left for the next. This needs no configuration and no knowledge of other clients.

/// The client id on a server with only one client, which may take everything.
pub const ONLY_CLIENT: u64 = 0;

/// True if a client that holds `held` may take `amount` of the `free` remainder.
pub fn may_take(client: u64, held: usize, free: usize, amount: usize) -> bool {
    let Some(remaining) = free.checked_sub(amount) else { return false };
    client == ONLY_CLIENT || held == 0 || held.saturating_add(amount) <= remaining.saturating_mul(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The amounts that `clients` clients end up with when they ask for one more in turn until all are refused.
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
    fn a_client_that_holds_nothing_gets_the_last() {
        assert!(may_take(7, 0, 1, 1));
        assert!(!may_take(7, 0, 0, 1));
    }
}
