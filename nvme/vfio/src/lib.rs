//! PCI functions taken from the kernel: VFIO containers, groups, registers, memory and interrupts.
