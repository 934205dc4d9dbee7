# SPDX-License-Identifier: MIT
"""C programs that are compiled to be read: their declarations, from the debug information, and the values
of their constants. A type is an entry of the debug information, and None is void."""

import io
import os
import subprocess
import tempfile

from elftools.elf.elffile import ELFFile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COMPILER = ["gcc", "-std=gnu11", "-D_GNU_SOURCE", "-w"]


class Failed(Exception):
    """With what to print."""


def run(*command, text=None):
    """The output of a command."""
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          cwd=TOP, check=False)
    if done.returncode != 0:
        raise Failed(done.stderr)
    return done.stdout


def absolute(path):
    """The compiler runs in the source tree."""
    return os.path.realpath(os.path.join(TOP.encode(), path))


QUALIFIERS = ("DW_TAG_const_type", "DW_TAG_volatile_type", "DW_TAG_restrict_type")
STRUCTS = ("DW_TAG_structure_type", "DW_TAG_union_type")


def name_of(entry):
    name = entry.attributes.get("DW_AT_name")
    return name and name.value.decode()


def type_of(entry):
    """Of a variable, member, pointer, typedef or function."""
    return entry.get_DIE_from_attribute("DW_AT_type") if "DW_AT_type" in entry.attributes else None


def bare(entry):
    """Without typedefs and qualifiers."""
    while entry is not None and entry.tag in ("DW_TAG_typedef", *QUALIFIERS):
        entry = type_of(entry)
    return entry


def is_const(entry):
    while entry is not None and entry.tag in ("DW_TAG_typedef", *QUALIFIERS):
        if entry.tag == "DW_TAG_const_type":
            return True
        entry = type_of(entry)
    return False


def is_struct(entry):
    return entry is not None and entry.tag in STRUCTS


def is_opaque(entry):
    return is_struct(entry) and "DW_AT_declaration" in entry.attributes


def has_size(entry):
    return entry is not None and not is_opaque(entry) and entry.tag != "DW_TAG_subroutine_type"


def counts_of(array):
    bounds = [child.attributes.get("DW_AT_upper_bound") for child in array.iter_children()]
    return [bound and bound.value + 1 for bound in bounds]


def parameters(function):
    return [type_of(child) if child.tag == "DW_TAG_formal_parameter" else "..."
            for child in function.iter_children()]


def number_of(entry):
    """The kind of a number and its bits."""
    kinds = {2: "bool", 4: "float", 5: "int", 6: "int", 7: "unsigned", 8: "unsigned"}
    bits = 8 * entry.attributes["DW_AT_byte_size"].value
    if entry.tag == "DW_TAG_enumeration_type":
        return "enum", bits
    return kinds.get(entry.attributes["DW_AT_encoding"].value, "other"), bits


def describe(entry):
    const = "const " if is_const(entry) else ""
    entry = bare(entry)
    if entry is None:
        return const + "void"
    if entry.tag == "DW_TAG_pointer_type":
        return describe(type_of(entry)) + " *"
    if entry.tag == "DW_TAG_array_type":
        return describe(type_of(entry)) + "".join(f"[{count}]" for count in counts_of(entry))
    if entry.tag == "DW_TAG_subroutine_type":
        inside = ", ".join(one if one == "..." else describe(bare(one)) for one in parameters(entry))
        return f"{describe(type_of(entry))}({inside})"
    if is_struct(entry):
        return f"{const}struct {name_of(entry) or '{...}'}"
    kind, bits = number_of(entry)
    return f"{const}{kind}{bits}"


class Program:
    """A compiled program: its declarations, and the values of its variables."""

    def __init__(self, text, flags):
        with tempfile.TemporaryDirectory() as folder:
            run(*COMPILER, "-gdwarf-4", *flags, "-x", "c", "-c", "-o", folder + "/object", "-", text=text)
            with open(folder + "/object", "rb") as file:
                self.elf = ELFFile(io.BytesIO(file.read()))
        self.debug = self.elf.get_dwarf_info()
        self.unit = next(self.debug.iter_CUs())
        self.entries = list(self.unit.get_top_DIE().iter_children())
        self.variables = {name_of(entry): entry for entry in self.entries if entry.tag == "DW_TAG_variable"}
        table = self.elf.get_section_by_name(".symtab")
        self.symbols = {symbol.name: symbol for symbol in table.iter_symbols()}

    def value(self, name):
        """Of a const long long, or None without it."""
        if name not in self.symbols:
            return None
        symbol = self.symbols[name]
        at = symbol["st_value"]
        return int.from_bytes(self.elf.get_section(symbol["st_shndx"]).data()[at:at + 8], "little", signed=True)

    def pointee(self, name):
        return type_of(bare(type_of(self.variables[name])))

    def file_of(self, entry):
        if "DW_AT_decl_file" not in entry.attributes:
            return None
        header = self.debug.line_program_for_CU(self.unit).header
        file = header["file_entry"][entry.attributes["DW_AT_decl_file"].value - 1]
        folder = header["include_directory"][file.dir_index - 1] if file.dir_index else b""
        return absolute((folder + b"/" if folder else b"") + file.name)
