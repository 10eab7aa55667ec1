//! A disk for the prompt cache that is easily full.

use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
};

/// A file system of its own in a folder, where this user may mount one.
pub struct SmallDisk {
    folder: PathBuf,
    is_mounted: bool,
}

impl SmallDisk {
    /// Mounts it; without the right to that the folder is an ordinary one, and never full.
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

    /// Takes all the room that is left, or gives it back; says which.
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
            // A worker may be about to end, and to close its files.
            let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
        }
    }
}
