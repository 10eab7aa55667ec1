//! The program's own index, which has newer releases of the families that it came with. `origin.json` of an installed program
//! names it; one that was built from the sources has none.

use pensieve_packages::{Bundled, IndexSource, Origin};

/// The index, and the plugins that this program came with.
pub(super) fn own_index() -> Option<(IndexSource, Bundled)> {
    let (origin, folder) = Origin::of_this_program()?;
    let index = origin.index?;
    let variant = match &*origin.kind {
        "cuda" => "cuda",
        _ if cfg!(target_os = "macos") => "metal",
        _ => "cpu",
    };
    let families = origin.families.into_iter().filter(|family| family.is_in(&folder));
    let bundled = Bundled {
        index: index.location.clone(),
        variant: variant.to_owned(),
        plugins: families.map(|family| (family.plugin, family.version)).collect(),
    };
    Some((IndexSource::new(&index.location, Some(index.key)), bundled))
}
