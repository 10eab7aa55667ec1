//! A disk for the prompt cache that is easily filled.

use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
};

/// A separate file system in a folder, if this user may mount one.
pub struct SmallDisk {
    folder: PathBuf,
    is_mounted: bool,
}

impl SmallDisk {
    /// Mounts it; without permission the folder is an ordinary one, and never full.
    pub fn mount(folder: PathBuf) -> Self {
        fs::create_dir_all(&folder).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m,mode=700", "pensieve-chaos"]).arg(&folder).stderr(Stdio::null());
        let is_mounted = mount.status().is_ok_and(|status| status.success());
        if !is_mounted {
            println!("the disk is never full: that takes the right to mount one");
        }
        Self { folder, is_mounted }
    }

    /// Fills the remaining space, or frees it; says which.
    pub fn fill_or_free(&self) -> &'static str {
        let filler = self.folder.join("filler");
        if !self.is_mounted {
            return "nothing";
        }
        if fs::remove_file(&filler).is_ok() {
            return "free";
        }
        let mut file = File::create(filler).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
        "fill"
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if self.is_mounted {
            // A worker may be exiting and closing its files.
            let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
        }
    }
}
