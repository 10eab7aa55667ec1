//! The keys that a running server accepts, which a new configuration replaces at once.

use std::sync::{Arc, PoisonError, RwLock};

use super::{Account, Key, NamedKey};
use pensieve_protocol::refusal::{Refusal, RefusalKind};

/// A key for local clients that insist on one when the server has none.
pub const LOCAL_KEY: &str = "pensieve-local-key";

/// Accepted keys. Without any, the server accepts all clients on this machine and no others.
#[derive(Debug)]
pub struct Keyring {
    keys: RwLock<Arc<KeyTable>>,
    /// Other machines can reach the server.
    is_open: bool,
}

/// The keys at one time.
#[derive(Debug, Default)]
pub(crate) struct KeyTable {
    pub(crate) known: Vec<KnownKey>,
    pub(crate) accounts: Vec<Arc<Account>>,
    /// There are no keys, so that every one is accepted.
    pub(crate) is_local: bool,
    /// There may be more than one client.
    pub(crate) has_clients: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct KnownKey {
    pub(crate) key: Key,
    /// `None` for one of the server's own, which may use everything.
    pub(crate) account: Option<Arc<Account>>,
}

impl Keyring {
    pub(crate) fn new(own: &[Key], named: &[NamedKey], is_open: bool) -> Self {
        let table = KeyTable::new(own, named, is_open, &KeyTable::default());
        Self { keys: RwLock::new(Arc::new(table)), is_open }
    }

    /// True if other machines can reach the server.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    pub(crate) fn table(&self) -> Arc<KeyTable> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Accepts these keys from now on, and no others; requests that run go on. Returns what has changed, a line each. Fails
    /// if other machines could use the server without a secret.
    pub fn replace(&self, own: &[Key], named: &[NamedKey]) -> Result<Vec<String>, Refusal> {
        if self.is_open {
            check_secret(own, named, "this server")?;
        }
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let new = KeyTable::new(own, named, self.is_open, &keys);
        let lines = new.changes(&keys);
        *keys = Arc::new(new);
        Ok(lines)
    }
}

/// No keys, for a server that only this machine can reach.
impl Default for Keyring {
    fn default() -> Self {
        Self::new(&[], &[], false)
    }
}

impl KeyTable {
    fn new(own: &[Key], named: &[NamedKey], is_open: bool, before: &Self) -> Self {
        let account = |settings: &NamedKey| match before.account(&settings.name) {
            Some(same) if same.settings == *settings => same.clone(),
            Some(other) => Arc::new(other.changed(settings.clone())),
            None => Arc::new(Account::new(settings.clone())),
        };
        let accounts: Vec<Arc<Account>> = named.iter().map(account).collect();
        let is_local = own.is_empty() && named.is_empty();
        let local = is_local.then(|| Key::new(LOCAL_KEY));
        let own = own.iter().cloned().chain(local).map(|key| KnownKey { key, account: None });
        let of_account = |account: &Arc<Account>| {
            let account = account.clone();
            account.settings.keys.clone().into_iter().map(move |key| KnownKey { key, account: Some(account.clone()) })
        };
        let known: Vec<KnownKey> = own.chain(accounts.iter().flat_map(of_account)).collect();
        let has_clients = is_open || known.len() > 1;
        Self { known, accounts, is_local, has_clients }
    }

    fn account(&self, name: &str) -> Option<&Arc<Account>> {
        self.accounts.iter().find(|account| account.name() == name)
    }

    /// The key with this digest, if it is still accepted.
    pub(crate) fn find(&self, key: &Key) -> Option<&KnownKey> {
        self.known.iter().find(|known| known.key == *key)
    }

    /// What is different from before, a line each.
    fn changes(&self, before: &Self) -> Vec<String> {
        let own = |table: &Self| -> Vec<Key> {
            let own = table.known.iter().filter(|known| known.account.is_none() && !table.is_local);
            own.map(|known| known.key.clone()).collect()
        };
        let mut lines = Vec::new();
        if own(self) != own(before) {
            lines.push("server.key changed".to_owned());
        }
        for account in &self.accounts {
            let name = account.name();
            match before.account(name) {
                None => lines.push(format!("key '{name}' is new")),
                Some(known) if known != account => lines.push(format!("key '{name}' changed")),
                Some(_) => {}
            }
        }
        let gone = before.accounts.iter().filter(|account| self.account(account.name()).is_none());
        lines.extend(gone.map(|gone| format!("key '{}' is removed; its running answers may finish", gone.name())));
        lines
    }
}

/// A server that other machines can reach must have secret keys alone.
pub(crate) fn check_secret(own: &[Key], named: &[NamedKey], address: &str) -> Result<(), Refusal> {
    let public = [Key::new(LOCAL_KEY), Key::new("")];
    let mut all = own.iter().chain(named.iter().flat_map(|named| &named.keys)).peekable();
    if all.peek().is_none() || all.any(|key| public.contains(key)) {
        let reason = format!("{address} can be reached from other machines, but no secret key is set");
        return Err(Refusal::new(RefusalKind::Keyless, reason, "set server.key or [[keys]], or listen on 127.0.0.1"));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn named(name: &str, key: &str) -> NamedKey {
        NamedKey { name: name.into(), keys: vec![Key::new(key)], ..NamedKey::default() }
    }

    #[test]
    fn a_change_says_what_is_different_and_keeps_what_runs() {
        let keyring = Keyring::new(&[Key::new("own")], &[named("a", "1"), named("b", "2")], true);
        let before = keyring.table();
        let running = before.accounts[0].begin().unwrap();
        let replace = |own: &[&str], keys: &[NamedKey]| {
            let own: Vec<Key> = own.iter().map(|key| Key::new(key)).collect();
            keyring.replace(&own, keys)
        };
        assert_eq!(replace(&["own"], &[named("a", "1"), named("b", "2")]).unwrap(), Vec::<String>::new());
        assert!(Arc::ptr_eq(&keyring.table().accounts[0], &before.accounts[0]));
        let lines = replace(&[], &[named("a", "3"), named("c", "2")]).unwrap();
        let expected = [
            "server.key changed",
            "key 'a' changed",
            "key 'c' is new",
            "key 'b' is removed; its running answers may finish",
        ];
        assert_eq!(lines, expected);
        let table = keyring.table();
        assert_eq!((table.accounts[0].running(), table.find(&Key::new("1")).is_some()), (1, false));
        assert_eq!(table.find(&Key::new("2")).unwrap().account.as_ref().unwrap().name(), "c");
        drop(running);
        assert_eq!(table.accounts[0].running(), 0);
    }

    #[test]
    fn an_open_server_is_never_left_without_a_secret() {
        let open = Keyring::new(&[Key::new("own")], &[], true);
        for keys in [&[][..], &[Key::new(LOCAL_KEY)], &[Key::new("other"), Key::new("")]] {
            assert!(open.replace(keys, &[]).is_err());
            assert!(open.table().find(&Key::new("own")).is_some());
        }
        assert!(open.replace(&[], &[named("a", "")]).is_err() && open.replace(&[], &[named("a", "1")]).is_ok());
        let local = Keyring::new(&[], &[], false);
        assert!(local.table().is_local && !local.table().has_clients);
        assert_eq!(local.replace(&[], &[named("a", "1")]).unwrap(), ["key 'a' is new"]);
        assert!(!local.table().is_local);
        assert!(local.replace(&[], &[]).is_ok() && local.table().is_local);
    }
}
