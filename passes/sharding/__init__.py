"""How a program is spread over a mesh: meshes, layouts, factor rules, resharding."""
