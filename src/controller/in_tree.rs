//! The in-tree plugins that CSI drivers took over (pv-binder §6.6).

use apiserver::kinds::InTreeSource;

/// Each plugin with the driver.
// KCM: csi-translation-lib/plugins, the seven translators that 1.36 migrates unconditionally.
const MIGRATED: [(&str, &str); 7] = [
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("kubernetes.io/azure-file", "file.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
];

/// The CSI driver that took over an in-tree plugin.
pub fn csi_name(plugin: &str) -> Option<&'static str> {
    MIGRATED.iter().find(|(known, _)| *known == plugin).map(|(_, driver)| *driver)
}

/// The plugin of a source, and the driver that took it over, if one did.
pub fn migrated(source: &InTreeSource) -> Option<(&'static str, &'static str)> {
    let plugin = match source {
        InTreeSource::AwsElasticBlockStore(_) => "kubernetes.io/aws-ebs",
        InTreeSource::GcePersistentDisk(_) => "kubernetes.io/gce-pd",
        InTreeSource::AzureDisk(_) => "kubernetes.io/azure-disk",
        InTreeSource::AzureFile(_) => "kubernetes.io/azure-file",
        InTreeSource::Cinder(_) => "kubernetes.io/cinder",
        InTreeSource::VsphereVolume(_) => "kubernetes.io/vsphere-volume",
        InTreeSource::PortworxVolume(_) => "kubernetes.io/portworx-volume",
        InTreeSource::Iscsi(_)
        | InTreeSource::Fc(_)
        | InTreeSource::FlexVolume(_)
        | InTreeSource::Malformed(_) => return None,
    };
    csi_name(plugin).map(|driver| (plugin, driver))
}
