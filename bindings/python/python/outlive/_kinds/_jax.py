"""Typed keys of random numbers, and nodes of pytrees that are of no other kind."""

import importlib
from typing import Any

from outlive._kinds._base import Detail, Finder, Kind, KindError, ref_of, said

jax: Any = importlib.import_module("jax")
_registry = jax.tree_util.default_registry

# --- Keys -----------------------------------------------------------------------------------------


def _lower_key(value: Any) -> tuple[Detail, Any]:
    return str(jax.random.key_impl(value)), jax.random.key_data(value)


KEY = Kind(
    "jax.key",
    _lower_key,
    lambda detail, tree, find: jax.random.wrap_key_data(tree, impl=detail),
)


# --- FrozenDict of Flax ---------------------------------------------------------------------------


def _frozen_dict(detail: Detail, tree: Any, find: Finder) -> Any:
    return importlib.import_module("flax.core").FrozenDict(tree)


FROZEN_DICT = Kind(
    "flax.FrozenDict",
    lambda value: (None, dict(value.items())),
    _frozen_dict,
    remake=lambda old, tree: type(old)(tree),
    is_whole=False,
)


# --- Other nodes ----------------------------------------------------------------------------------

# The part of a node that is none of its children.
_REST = "(rest)"


def _lower_node(value: Any) -> tuple[Detail, Any]:
    from outlive._kinds import is_saveable  # the other import would make a circle

    children, rest = _registry.flatten_one_level(value)
    children = list(children)
    names = _names(value, len(children))
    tree = dict(zip(names, children, strict=True))
    has_rest = is_saveable(rest)
    if has_rest:
        tree[_REST] = rest
    return (ref_of(type(value)), has_rest), tree


def _names(value: Any, count: int) -> list[str]:
    """Returns the names of the children, as JAX tells them; else their numbers."""
    leaves = jax.tree_util.tree_leaves_with_path(value, is_leaf=lambda each: each is not value)
    names = [jax.tree_util.keystr(path, simple=True) for path, _ in leaves]
    is_usable = len(names) == count == len(set(names)) and _REST not in names
    return names if is_usable else list(map(str, range(count)))


def _node_class(detail: Detail, find: Finder) -> Any:
    ref, has_rest = detail
    if not has_rest:
        raise KindError(
            f"{said(ref)} held code, which is not saved: give a state with such an object as `into`"
        )
    return find.cls(ref)


def _make_node(detail: Detail, tree: Any, find: Finder) -> Any:
    cls = _node_class(detail, find)
    children = {name: child for name, child in tree.items() if name != _REST}
    made = _structure((cls, tree[_REST]), len(children))
    return made.unflatten(children.values())


def _remake_node(old: Any, tree: Any) -> Any:
    cls, rest = jax.tree_util.tree_structure(old).node_data()
    children = [child for name, child in tree.items() if name != _REST]
    return _structure((cls, tree.get(_REST, rest)), len(children)).unflatten(children)


def _structure(node: Any, count: int) -> Any:
    of_leaf = jax.tree_util.tree_structure(0)
    definition = type(of_leaf)
    make = getattr(definition, "make_from_node_data_and_children", None)
    make = make or definition.from_node_data_and_children
    return make(_registry, node, [of_leaf] * count)


NODE = Kind("jax.node", _lower_node, _make_node, _node_class, remake=_remake_node, is_whole=False)

BY_NAME = {kind.name: kind for kind in (KEY, FROZEN_DICT, NODE)}


def kind_of(cls: type) -> Kind | None:
    """Returns the kind of a class of JAX or Flax; None for arrays, and for nodes of any class."""
    return {"PRNGKeyArray": KEY, "FrozenDict": FROZEN_DICT}.get(cls.__name__)


def kind_of_node(value: Any) -> Kind | None:
    """Returns the kind of an object whose class is registered with JAX."""
    return None if _registry.flatten_one_level(value) is None else NODE
