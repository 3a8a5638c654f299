// SPDX-License-Identifier: GPL-2.0
/*
 * GPUs without hardware, for a throw-away virtual machine: PCI drivers that are named
 * like the real ones and give each device they are bound to DRM nodes, and nothing more.
 *
 *   kernel driver   binds by itself to QEMU's   and shows the ids
 *   i915            pci-testdev (1b36:0005)     8086:56a0
 *   xe              edu         (1234:11e8)     8086:e20b
 *   amdgpu          pvpanic-pci (1b36:0011)     1002:744c
 *   foogpu          sdhci-pci (1b36:0007)       1234:0f00, of no vendor: for drivers of others
 *
 * Any of them takes any device with driver_override. The parameters below can be changed
 * at any time in /sys/module/gpustub/parameters and hold for the probes that follow.
 */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/version.h>
#include <drm/drm_drv.h>
#include <drm/drm_file.h>
#include <drm/drm_gem.h>
#include <drm/drm_ioctl.h>

#define DISPLAY_CLASS 0x030000

static unsigned int render_delay_ms;
module_param(render_delay_ms, uint, 0644);
MODULE_PARM_DESC(render_delay_ms, "milliseconds before the render node is made");

static unsigned int card_delay_ms;
module_param(card_delay_ms, uint, 0644);
MODULE_PARM_DESC(card_delay_ms, "milliseconds between the render node and the card node");

static unsigned int remove_delay_ms;
module_param(remove_delay_ms, uint, 0644);
MODULE_PARM_DESC(remove_delay_ms, "milliseconds that the device outlives its nodes");

static unsigned int nodes;
module_param(nodes, uint, 0644);
MODULE_PARM_DESC(nodes, "0: card and render node, 1: render node only, 2: card node only");

static unsigned int fail;
module_param(fail, uint, 0644);
MODULE_PARM_DESC(fail, "0: probes succeed, 1: fail at once, 2: fail after the nodes were made");

struct stub {
	struct drm_device *drm;
	/* What the device really is; drivers match by it, so it has to be back before the next probe. */
	unsigned short vendor, device;
	unsigned int class;
};

/*
 * The DRM core makes all nodes of a device in one go. It asks for the visibility of a
 * node's sysfs attributes while it makes that node, and that is where a driver can wait.
 */
static umode_t wait_for_render(struct kobject *kobj, struct attribute *attr, int n)
{
	msleep(READ_ONCE(render_delay_ms));
	return 0;
}

static umode_t wait_for_card(struct kobject *kobj, struct attribute *attr, int n)
{
	msleep(READ_ONCE(card_delay_ms));
	return 0;
}

static struct attribute never_shown = { .name = "never_shown", .mode = 0444 };
static struct attribute *attributes[] = { &never_shown, NULL };
static const struct attribute_group render_group = { .is_visible = wait_for_render, .attrs = attributes };
static const struct attribute_group card_group = { .is_visible = wait_for_card, .attrs = attributes };
static const struct attribute_group *render_groups[] = { &render_group, NULL };
static const struct attribute_group *card_groups[] = { &card_group, NULL };

DEFINE_DRM_GEM_FOPS(stub_fops);

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 14, 0)
#define STUB_DATE .date = "20260101",
#else
#define STUB_DATE
#endif

#define STUB_DRM(features) {			\
	.driver_features = (features),		\
	.fops = &stub_fops,			\
	.name = "gpustub",			\
	.desc = "a GPU without hardware",	\
	.major = 1,				\
	STUB_DATE				\
}

static const struct drm_driver with_render = STUB_DRM(DRIVER_GEM | DRIVER_RENDER);
static const struct drm_driver without_render = STUB_DRM(DRIVER_GEM);

static void show_as(struct pci_dev *pci, unsigned short vendor, unsigned short device, unsigned int class)
{
	pci->vendor = vendor;
	pci->device = device;
	pci->class = class;
}

static int probe(struct pci_dev *pci, unsigned short vendor, unsigned short device)
{
	unsigned int wanted = READ_ONCE(nodes), failing = READ_ONCE(fail);
	struct stub *stub;
	int error;

	if (failing == 1)
		return -EIO;
	stub = devm_kzalloc(&pci->dev, sizeof(*stub), GFP_KERNEL);
	if (!stub)
		return -ENOMEM;
	stub->drm = drm_dev_alloc(wanted == 2 ? &without_render : &with_render, &pci->dev);
	if (IS_ERR(stub->drm))
		return PTR_ERR(stub->drm);
	if (stub->drm->render && READ_ONCE(render_delay_ms))
		stub->drm->render->kdev->groups = render_groups;
	if (READ_ONCE(card_delay_ms))
		stub->drm->primary->kdev->groups = card_groups;
	stub->vendor = pci->vendor;
	stub->device = pci->device;
	stub->class = pci->class;
	show_as(pci, vendor, device, DISPLAY_CLASS);
	error = drm_dev_register(stub->drm, 0);
	if (!error && failing == 2) {
		drm_dev_unplug(stub->drm);
		error = -EIO;
	}
	if (error) {
		show_as(pci, stub->vendor, stub->device, stub->class);
		drm_dev_put(stub->drm);
		return error;
	}
	/* There is no DRM device without a card node; this one's goes again, and stays away. */
	if (wanted == 1)
		device_del(stub->drm->primary->kdev);
	pci_set_drvdata(pci, stub);
	return 0;
}

static void stub_remove(struct pci_dev *pci)
{
	struct stub *stub = pci_get_drvdata(pci);

	drm_dev_unplug(stub->drm);
	msleep(READ_ONCE(remove_delay_ms));
	show_as(pci, stub->vendor, stub->device, stub->class);
	drm_dev_put(stub->drm);
}

#define STUB_DRIVER(bears, qemu_vendor, qemu_device, vendor, device)				\
static int bears##_probe(struct pci_dev *pci, const struct pci_device_id *id)			\
{												\
	return probe(pci, vendor, device);							\
}												\
static const struct pci_device_id bears##_ids[] = { { PCI_DEVICE(qemu_vendor, qemu_device) }, {} };	\
static struct pci_driver bears = {								\
	.name = #bears, .id_table = bears##_ids, .probe = bears##_probe, .remove = stub_remove,	\
}

STUB_DRIVER(i915, 0x1b36, 0x0005, 0x8086, 0x56a0);
STUB_DRIVER(xe, 0x1234, 0x11e8, 0x8086, 0xe20b);
STUB_DRIVER(amdgpu, 0x1b36, 0x0011, 0x1002, 0x744c);
STUB_DRIVER(foogpu, 0x1b36, 0x0007, 0x1234, 0x0f00);

static struct pci_driver *drivers[] = { &i915, &xe, &amdgpu, &foogpu };

static int __init stub_init(void)
{
	int error, n;

	for (n = 0; n < ARRAY_SIZE(drivers); n++) {
		error = pci_register_driver(drivers[n]);
		if (error) {
			while (n--)
				pci_unregister_driver(drivers[n]);
			return error;
		}
	}
	return 0;
}

static void __exit stub_exit(void)
{
	int n;

	for (n = 0; n < ARRAY_SIZE(drivers); n++)
		pci_unregister_driver(drivers[n]);
}

module_init(stub_init);
module_exit(stub_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("GPUs without hardware, for tests of hotplug");
