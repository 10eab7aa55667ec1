//! The manifests of `docs/scaling`, checked against the schemas of Kubernetes. The test is skipped where these cannot be
//! installed.

use std::{fs, path::Path, process::Command, time::Duration};

use super::clients::{finish, install_python, installed};

const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn the_manifests_fit_the_schemas_of_kubernetes() {
    let packages = match installed("kubernetes", "kubernetes.txt", install_python) {
        Ok(packages) => packages,
        Err(why) => return println!("skipped: kubernetes-validate cannot be installed: {why}"),
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/scaling");
    let check = |file: &Path| {
        let mut command = Command::new(packages.join("bin/kubernetes-validate"));
        finish(command.arg("--strict").arg(file), PATIENCE)
    };
    let mut resources = 0;
    for file in ["pensieve.yaml", "vllm.yaml"].map(|name| folder.join(name)) {
        let said = check(&file).unwrap_or_else(|said| panic!("{}: {said}", file.display()));
        resources += said.lines().filter(|line| line.contains(" passed for resource ")).count();
    }
    assert_eq!(resources, 9);
    // The check finds what is wrong.
    let wrong = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(folder.join("vllm.yaml")).unwrap().replace("clusterIP:", "clusterAddress:");
    let file = wrong.path().join("wrong.yaml");
    fs::write(&file, text).unwrap();
    assert!(check(&file).is_err());
}
