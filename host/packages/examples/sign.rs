//! Signs the documents of a release: `sign KEY FILE…` writes `FILE.minisig` beside each, and prints the public key. The key
//! is one that `pensieve plugins key` or `minisign -G` made; its password is in `PENSIEVE_KEY_PASSWORD`.

use std::{env, error::Error, fs, path::PathBuf};

use pensieve_packages::{Document, SecretKey};
use pensieve_protocol::outside::Outside;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args_os().skip(1).map(PathBuf::from);
    let path = arguments.next().ok_or("it takes a secret key and the files to sign")?;
    let text = fs::read_to_string(&path).map_err(|error| format!("'{}': {error}", Outside::path(&path)))?;
    let key = SecretKey::parse(&text, env::var("PENSIEVE_KEY_PASSWORD").ok().as_deref())?;
    for file in arguments {
        let bytes = fs::read(&file).map_err(|error| format!("'{}': {error}", Outside::path(&file)))?;
        let mut signature = file.into_os_string();
        signature.push(".minisig");
        fs::write(signature, key.sign(Document::Release, &bytes)?)?;
    }
    println!("{}", key.public());
    Ok(())
}
