//! What the path of a request leads to.
//!
//! In: a path. Out: resource, name and subresource, told apart by their places: an object may be named `status`, and a
//! claim, a volume and a node of that name are bound and attached as any other.

/// What a path leads to; all empty if it is no path of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target<'a> {
    /// Plural of the resource.
    pub plural: &'a str,
    /// Name of the object; empty for a collection.
    pub name: &'a str,
    /// Part of the object, such as `status`; empty for the object itself.
    pub subresource: &'a str,
}

impl<'a> Target<'a> {
    pub(super) fn of(path: &'a str) -> Self {
        let path = path.split('?').next().unwrap_or_default();
        let mut parts = path.split('/').skip(1);
        match parts.next() {
            // The version, and the group before it.
            Some("api") => drop(parts.next()),
            Some("apis") => drop((parts.next(), parts.next())),
            _ => return Self::default(),
        }
        let parts: Vec<&str> = parts.collect();
        let (["namespaces", _, plural, rest @ ..] | [plural, rest @ ..]) = parts.as_slice() else {
            return Self::default();
        };
        let part = |index| rest.get(index).copied().unwrap_or_default();
        Self { plural, name: part(0), subresource: part(1) }
    }

    /// The path of the object itself.
    pub(super) fn object(self, path: &'a str) -> &'a str {
        match self.subresource {
            "" => path,
            subresource => {
                path.strip_suffix(subresource).and_then(|path| path.strip_suffix('/')).unwrap_or(path)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s23_an_object_may_be_named_as_a_subresource_is() {
        // path; resource, name, subresource, the object's own path
        let cases = [
            ("/api/v1/nodes/n", ["nodes", "n", ""], "/api/v1/nodes/n"),
            ("/api/v1/nodes/n/status", ["nodes", "n", "status"], "/api/v1/nodes/n"),
            ("/api/v1/nodes/status", ["nodes", "status", ""], "/api/v1/nodes/status"),
            ("/api/v1/nodes/status/status", ["nodes", "status", "status"], "/api/v1/nodes/status"),
            (
                "/api/v1/namespaces/status/persistentvolumeclaims/status/status",
                ["persistentvolumeclaims", "status", "status"],
                "/api/v1/namespaces/status/persistentvolumeclaims/status",
            ),
            (
                "/api/v1/namespaces/status/persistentvolumeclaims/finalizers",
                ["persistentvolumeclaims", "finalizers", ""],
                "/api/v1/namespaces/status/persistentvolumeclaims/finalizers",
            ),
            (
                "/apis/storage.k8s.io/v1/volumeattachments/proxy",
                ["volumeattachments", "proxy", ""],
                "/apis/storage.k8s.io/v1/volumeattachments/proxy",
            ),
            ("/api/v1/namespaces/ns/pods?limit=5", ["pods", "", ""], "/api/v1/namespaces/ns/pods?limit=5"),
            ("/api/v1/namespaces/status", ["namespaces", "status", ""], "/api/v1/namespaces/status"),
            ("/version", ["", "", ""], "/version"),
        ];
        for (path, [plural, name, subresource], object) in cases {
            let target = Target::of(path);
            assert_eq!(target, Target { plural, name, subresource }, "{path}");
            assert_eq!(target.object(path), object, "{path}");
        }
    }
}
